from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import sinkscope as sk
from sinkscope.extend import Family, register_family


class TwoWay(Family):
    """Llama's classes and weights, trained to fill in masks: attention looks both ways."""

    name = "two_way"
    sampler = "llada"
    default_settings: ClassVar[dict[str, Any]] = {"length": 16, "block": 8, "steps": 16}

    def matches(self, config: dict[str, Any], folder: Path) -> bool:
        return config.get("model_type") == "two_way_llama"

    def native_config(self, config: dict[str, Any]) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig.from_dict({**config, "model_type": "llama"})


register_family(TwoWay())


def make_checkpoint(folder: Path) -> None:
    """Random weights in this family's layout, with the tokenizer of tiny-llada."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = sk.load("tiny-llada").tokenizer
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, tie_word_embeddings=False, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "two_way_llama"}))


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]))
