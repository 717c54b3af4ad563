"""Every family of the package; a new one is a file beside these, and a line in the list."""

from sinkscope.models.families.causal import AdaptedToDiffusion, Llama
from sinkscope.models.families.diffusion_gemma import DiffusionGemma
from sinkscope.models.families.llada import LLaDA, MMaDA
from sinkscope.models.families.moe import BLOCK_ROUTING, LLaDA2, LLaDAMoE
from sinkscope.models.families.nemotron import Nemotron
from sinkscope.models.families.qwen import RND1, SDAR, Dream, FastDLLM, ILLaDA, OpenDCoder, WeDLM
from sinkscope.models.families.small import BD3LM, GIDD, MDLM, SEDD, GIDDv2
from sinkscope.models.family import register

for _family in (
    LLaDA, MMaDA, Dream, OpenDCoder, RND1, FastDLLM, SDAR, WeDLM, ILLaDA, LLaDAMoE, LLaDA2, Nemotron, DiffusionGemma,
    MDLM, BD3LM, GIDD, SEDD, GIDDv2, AdaptedToDiffusion, Llama,
):  # fmt: skip
    register(_family())

# Diffusion checkpoints that are refused, because a family would load them and compute something else, or none knows them:
# by a word in the names of their architectures, their model type, or (LLaDA2.2's config.json was not seen) their fields.
UNSUPPORTED = {
    "stablediffcoder": "Stable-DiffCoder's config.json says llama, and loaded as that it would be silently causal; where "
    "its blocks of 4 begin and how it ends is not published, so it cannot be decoded as its authors do.",
    "block_rout": BLOCK_ROUTING,
}
