"""Nemotron-Labs-Diffusion: Ministral3's mathematics; one set of weights that writes left to right, by diffusion, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from sinkscope.models.family import FOREIGN, Config, Family, block_mask

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.model import Model


class Nemotron(Family):
    """nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B and -3B-Base.

    Finished text is causal, and the block at work sees all that is there: not the block-causal attention of LLaDA2 or SDAR.
    """

    name = "nemotron_labs_diffusion"
    model_type = name
    requires: ClassVar[dict[str, Any]] = {
        "sliding_window": None, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
    }  # fmt: skip
    padding_position = 0
    samplers = ("nemotron", "autoregressive")
    sampler = "nemotron"
    modes = ("diffusion", "autoregressive", "self_speculation")
    end_of_turn = "<|im_end|>"
    key_mapping: ClassVar[dict[str, str]] = {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."}

    def native_config(self, config: Config) -> PretrainedConfig:
        from transformers import Ministral3Config

        rope = dict(config.get("rope_parameters") or config["rope_scaling"])
        rope.setdefault("rope_theta", config.get("rope_theta"))
        for needed in ("original_max_position_embeddings", "llama_4_scaling_beta"):  # queries are scaled by them
            _ = rope[needed]
        kept = {field: value for field, value in config.items() if field not in FOREIGN}
        return Ministral3Config(**{**kept, "rope_parameters": rope, "sliding_window": None})

    def visible(self, model: Model, ids: Tensor, real: Tensor | None) -> Tensor | None:
        """The module is causal by itself, so a padded batch that sees both ways must bring a mask."""
        return None if model.causal or real is None else block_mask(ids.shape[1], 0, ids.shape[1], real, ids.device)

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        """NVIDIA's settings; each row ends by itself, where their code lets the rows of a batch wait for each other."""
        mode = model.mode or "diffusion"
        threshold = None if mode == "self_speculation" else 0.9
        return "nemotron", {"length": 128, "block": 32, "threshold": threshold, "mode": mode, "stop": "early_eos"}
