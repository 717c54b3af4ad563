"""MDLM, BD3-LM, GIDD and SEDD, one small diffusion transformer under four names; and GIDD v2, which has a built-in sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from sinkscope.models.family import Config, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

ANY_LENGTH = 1 << 20  # there is no table of positions
BLOCK = r"^(?:backbone\.)?blocks\.(\d+)\."
PARTS = {
    r"adaLN_modulation\.": "modulation.", r"norm1\.": "input_layernorm.", r"norm2\.": "post_attention_layernorm.",
    r"attn_qkv\.": "self_attn.qkv_proj.", r"attn_out\.": "self_attn.o_proj.", r"mlp\.0\.": "mlp.up_proj.",
    r"mlp\.2\.": "mlp.down_proj.",
}  # fmt: skip
ENDS = {
    r"vocab_embed\.embedding$": "model.embed_tokens.weight", r"sigma_map\.mlp\.0\.": "model.time.enter.",
    r"sigma_map\.mlp\.2\.": "model.time.leave.", r"output_layer\.norm_final\.": "model.norm.",
    r"output_layer\.adaLN_modulation\.": "model.norm.modulation.", r"output_layer\.linear\.": "lm_head.",
}  # fmt: skip
KEYS = {
    **{rf"^(?:backbone\.)?{own}": native for own, native in ENDS.items()},
    **{BLOCK + own: rf"model.layers.\1.{native}" for own, native in PARTS.items()},
}


SAME = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "attention_bias", "mlp_bias", "attn_soft_cap",
    "head_scaling", "weight_scaling", "noise_type", "min_log_snr", "max_log_snr",
)  # fmt: skip
MASK = 3


class SmallDiffusion(Family):
    """What the four share: the module, its keys, the mask as the last token and GPT-2's end of text before it."""

    key_mapping: ClassVar[dict[str, str]] = KEYS
    plain_tokenizer = True
    empty_prompt = True
    sizes: ClassVar[Mapping[str, str]] = {}  # field of our configuration → the authors' name of it
    noise: ClassVar[float] = 1e-3

    def own_class(self) -> Any:
        from sinkscope.models.networks import DiTForDiffusion

        return DiTForDiffusion

    def vocabulary(self, config: Config) -> int:
        return int(config["vocab_size"])

    def time_input(self, config: Config) -> str:
        """What number the network is told: "none", "sigma" or "t"."""
        return "sigma" if config.get("time_conditioning") else "none"

    def native_config(self, config: Config) -> PretrainedConfig:
        from sinkscope.models.networks import own_config

        sizes = {name: int(config[own]) for name, own in self.sizes.items()}
        words, width, heads = self.vocabulary(config), sizes["hidden_size"], sizes["num_attention_heads"]
        return own_config(
            **sizes, vocab_size=words, head_dim=width // heads, num_key_value_heads=heads, intermediate_size=4 * width,
            rope_theta=10000.0, max_position_embeddings=ANY_LENGTH, head_bias=True, head_scaling=1.0,
            time_input=self.time_input(config), noise=self.noise, mask_token_id=words - 1, bos_token_id=words - 2,
            eos_token_id=words - 2, pad_token_id=None,
        )  # fmt: skip

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """The last token: their vocabulary is GPT-2's and one more."""
        return int(config.get("mask_token_id") or self.vocabulary(config) - 1)

    def valid_vocab_size(self, model: Model) -> int | None:
        """All but the mask: the distribution of a masked token has no mask in it."""
        return model.mask_id

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        return self.sampler, {"length": int(model.config.window), **self.default_settings}


class MDLM(SmallDiffusion):
    """kuleshov-group/mdlm-owt and its siblings."""

    name = "mdlm"
    model_type = "mdlm"
    sampler = "mdlm_dit"
    samplers = ("mdlm_dit",)
    default_settings: ClassVar[dict[str, Any]] = {"steps": 1000}
    sizes: ClassVar[Mapping[str, str]] = {
        "hidden_size": "hidden_dim", "num_hidden_layers": "n_blocks", "num_attention_heads": "n_heads",
        "cond_dim": "cond_dim", "window": "model_length",
    }  # fmt: skip


class BD3LM(MDLM):
    """kuleshov-group/bd3lm-owt-block_size4, -8 and -16: a block sees itself and the blocks before it."""

    name = "bd3lm"
    model_type = "bd3lm"
    sampler = "bd3lm_dit"
    samplers = ("bd3lm_dit",)
    default_settings: ClassVar[dict[str, Any]] = {}
    requires: ClassVar[dict[str, Any]] = {"adaln": True, "causal": False, "cross_attn": True}
    block_length = ("block_size", 4)
    bound = "blocks"

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        return self.sampler, {"length": int(model.config.window) - 1, "block": model.block, "nucleus": 0.9}


class GIDD(SmallDiffusion):
    """dvruette/gidd-small and gidd-base with p_unif 0.0, 0.1 and 0.2; their type names the vision transformer too."""

    name = "gidd"
    model_type = ".*"
    marks = ("t_eps", "timestep_cond_dim")
    priority = 40
    sampler = "gidd"
    samplers = ("gidd", "gidd_correction")
    default_settings: ClassVar[dict[str, Any]] = {"steps": 128}
    noise = 1e-4
    bound = "hybrid"
    sizes: ClassVar[Mapping[str, str]] = {
        "hidden_size": "hidden_size", "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads", "cond_dim": "timestep_cond_dim", "window": "max_seq_len",
    }  # fmt: skip

    def time_input(self, config: Config) -> str:
        return "t"

    def native_config(self, config: Config) -> PretrainedConfig:
        native = super().native_config(config)
        native.noise, native.p_uniform = float(config["t_eps"]), float(config["p_uniform"])
        return native


class SEDD(SmallDiffusion):
    """louaaron/sedd-small and -medium, converted to safetensors: config.json is the training configuration."""

    name = "sedd"
    model_type = ".*"
    marks = ("model", "graph", "tokens")
    priority = 40
    sampler = "sedd"
    samplers = ("sedd",)
    default_settings: ClassVar[dict[str, Any]] = {"steps": 1024}
    sizes: ClassVar[Mapping[str, str]] = {
        "hidden_size": "hidden_size", "num_hidden_layers": "n_blocks", "num_attention_heads": "n_heads",
        "cond_dim": "cond_dim", "window": "length",
    }  # fmt: skip

    def time_input(self, config: Config) -> str:
        return "sigma"

    def native_config(self, config: Config) -> PretrainedConfig:
        native = super().native_config({**config["model"], "tokens": config["tokens"]})
        native.scale_by_sigma = bool(config["model"]["scale_by_sigma"])
        return native

    def vocabulary(self, config: Config) -> int:
        return int(config["tokens"]) + 1


class GIDDv2(Family):
    """dvruette/gidd-mask-3b, gidd-unif-3b and gidd-unif-10b."""

    name = "gidd_v2"
    model_type = "gidd"
    marks = ("attn_soft_cap",)
    requires: ClassVar[dict[str, Any]] = {"use_qk_norm": True, "rope_scaling": None, "tie_word_embeddings": False}
    sampler = "gidd_v2"
    samplers = ("gidd_v2",)
    plain_tokenizer = True
    empty_prompt = True
    built_in_key = True

    def own_class(self) -> Any:
        from sinkscope.models.networks import GIDDv2ForDiffusion

        return GIDDv2ForDiffusion

    def native_config(self, config: Config) -> PretrainedConfig:
        from sinkscope.models.networks import own_config

        fields = {name: config[name] for name in SAME}
        heads, scale = config["num_attention_heads"], config["resid_scale"] / config["num_hidden_layers"]
        return own_config(  # special tokens are those of the authors' generate: no config names them all
            **fields, bos_token_id=0, eos_token_id=1, pad_token_id=2, mask_token_id=MASK, num_key_value_heads=heads,
            branch_scale=scale, head_bias=False,
        )  # fmt: skip

    def adapt(self, module: Any, config: Config) -> None:
        from sinkscope.models.networks import CAPPED

        module.config._attn_implementation = CAPPED

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        return int(config.get("mask_token_id") or MASK)

    def cap(self, module: Any, logits: Tensor) -> Tensor:
        return logits * float(module.config.head_scaling)

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        length = min(128, int(model.config.max_position_embeddings) // 2)
        return self.sampler, {"length": length, "block": length, "steps": 2 * length}
