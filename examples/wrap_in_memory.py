"""Models that transformers has in memory, wrapped: traced, masked and checked, and equal to `sk.load` token for token.

`python examples/wrap_in_memory.py` does it for SmolLM2-135M (extra: smollm), a random LLaDA, a PEFT-wrapped and a quantised
model; `--tiny` leaves SmolLM2 out. It ends with an error where a token differs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import sinkscope as sk

PROMPT = "Tom has 12 apples and gives 5 away. How many are left?"


def compare(name: str, loaded: sk.Model, wrapped: sk.Model, prompt: Any, settings: sk.Decode) -> None:
    """The same generation of both, untouched and with each head's largest sink masked; then what `sinkscope check` checks."""
    rows = "last" if wrapped.causal else "all"
    for label, change in (("untouched", []), ("masked", [sk.MaskSinks(k=1, rows=rows)])):
        one, other = (
            sk.trace(model, prompt, settings, interventions=change, keep=sk.Keep(dtype=torch.float32))
            for model in (loaded, wrapped)
        )
        assert torch.equal(one.canvas, other.canvas), f"{name}, {label}: other tokens"
        assert torch.allclose(one.received, other.received, atol=1e-4), f"{name}, {label}: other attention"
        strong = other.sinks(sk.HeadShare(0.3)).height
        print(
            f"{name}, {label}: {other.steps} steps, the tokens of sk.load at every one; {strong} strong sinks (step, layer, head)"
        )
    checks = list(sk.checkup(wrapped))
    assert all(check.status != "failed" for check in checks), [check for check in checks if check.status == "failed"]
    print(f"{name}: {sum(check.status == 'ok' for check in checks)} checks ok, {wrapped!r}\n")


def random_llada(folder: Path) -> LlamaForCausalLM:
    """A tiny random diffusion model in transformers' own class, stored with the name of its mask token."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=96, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         intermediate_size=128, max_position_embeddings=128, eos_token_id=1, pad_token_id=1)  # fmt: skip
    config.mask_token_id = 2
    LlamaForCausalLM(config).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def tiny(folder: Path) -> None:
    """A random LLaDA; the same with an untrained LoRA around it."""
    ids, settings = torch.arange(3, 15)[None], sk.Decode.llada(length=16, block=8, steps=16)
    # sk.load takes the folder for the a2d family, which has the same mathematics: native keys and a mask token.
    loaded, theirs = sk.load(folder), random_llada(folder)
    compare("random LLaDA", loaded, sk.wrap(theirs, family="llada", mask_id=2), ids, settings)

    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder), LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    )
    compare("with a LoRA", loaded, sk.wrap(adapted, family="llada", mask_id=2), ids, settings)


def smollm(folder: Path) -> None:
    """SmolLM2-135M: its weights, saved as any checkpoint and read by transformers alone."""
    loaded = sk.load("smollm2-135m")
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wrapped = sk.wrap(theirs, PreTrainedTokenizerFast.from_pretrained(folder))
    messages = [{"role": "user", "content": PROMPT}]
    assert wrapped.generate(messages, max_new_tokens=16) == loaded.generate(PROMPT, length=16)
    compare("SmolLM2-135M", loaded, wrapped, PROMPT, sk.Decode.autoregressive(length=16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="without SmolLM2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        random_llada(folder / "llada")
        tiny(folder / "llada")
        if not given.tiny:
            smollm(folder / "smollm")


if __name__ == "__main__":
    main()
