"""Names that transformers and the models' authors use: our name for each, or why it is refused; docs/reference/words.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import SinkscopeError
from sinkscope.fields import shown

# value, kind of decoder, the other settings given → our settings; a ValueError says why not
Translate = Callable[[Any, str, Mapping[str, Any]], dict[str, Any]]
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class Alias:
    """One name of theirs; with neither `translate` nor `refused` it is only renamed: the value is handed on."""

    theirs: str
    origin: str
    ours: str  # what to write here
    translate: Translate | None = None
    refused: str = ""  # why it is not accepted …
    unless: Any = None  # … except with this value, which says what is done anyway
    note: str = ""  # for the table


def _remasking(value: Any, decoder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if decoder not in ("llada", "mmada", "parallel", "mdlm", "bd3lm"):
        raise ValueError(f"{decoder} decoding has a rule of its own")
    named = {"low_confidence": "probability", "random": "random"}
    if value not in tuple(named):
        raise ValueError(f"known are {' and '.join(named)}")
    return {"confidence": named[value]}


def _do_sample(value: Any, decoder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise ValueError("it is True or False")
    if decoder == "rnd1":
        return {"greedy": not value}
    if decoder in ("wedlm", "native"):  # one never draws, the other always does
        if value != (decoder == "native"):
            raise ValueError(f"{decoder} decoding {'always' if decoder == 'native' else 'never'} draws")
        return {}
    if (temperature := given.get("temperature")) is not None:
        if (temperature != 0) != value:
            raise ValueError(f"temperature={temperature!r} says the opposite")
        return {}
    return {"temperature": 1.0 if value else 0.0}


TF, LLADA, DREAM, FAST = "transformers", "LLaDA, MMaDA", "Dream", "Fast-dLLM"

# Of generate, trace, activations, Decode.llada(…) and its siblings, and --set.
DECODE = (
    Alias("max_new_tokens", f"{TF}, Dream, dllm, Nemotron", "length"),
    Alias("gen_length", f"{LLADA}, LLaDA2, SDAR", "length"),
    Alias("block_length", f"{LLADA}, LLaDA2, SDAR, Nemotron", "block"),
    Alias("do_sample", TF, "temperature", _do_sample, note="False is temperature 0, True is 1 unless given; RND1: greedy"),
    Alias("remasking", f"{LLADA}, {FAST}, dllm", "confidence", _remasking, note="low_confidence is probability; random"),
    Alias("cfg_scale", f"{LLADA}, dllm", "guidance", note="the same formula, 0 is none"),
    Alias("guidance_scale", TF, "guidance", refused="there 1 is none, and here 0: guidance is guidance_scale − 1"),
    Alias("alg", DREAM, "algorithm", note="origin, maskgit_plus, topk_margin, entropy, p2"),
    Alias("alg_temp", DREAM, "algorithm_temperature"),
    Alias("eps", DREAM, "epsilon"),
    Alias("logits_eos_inf", "LLaDA", "forbid_eos"),
    Alias("confidence_eos_eot_inf", "LLaDA", "late_eos"),
    Alias("eos_token_id", TF, "eos_id"),
    Alias("max_length", TF, "length", refused="it counts the prompt too"),
    Alias("num_beams", TF, "seed", refused="there is no beam search, only draws by seed", unless=1, note="1 is accepted"),
    Alias("num_return_sequences", TF, "a list of prompts", refused="a prompt has one answer", unless=1, note="1 is accepted"),
    Alias("use_cache", TF, "recompute=True, cache=…",
          refused="a left-to-right model has a cache unless recompute=True, a diffusion model the one that cache names"),
    Alias("dual_cache", FAST, 'cache="dual"', refused="a cache is chosen by its name"),
    Alias("output_history", DREAM, "sk.decode(history=True)", refused="generate gives text alone"),
    Alias("return_dict_in_generate", TF, "sk.decode or sk.trace", refused="generate gives text alone"),
    Alias("streamer", TF, "sk.decode(on_step=…)", refused="a canvas is not written from left to right"),
    Alias("generation_config", TF, "settings=Decode.…", refused="decode settings are a Decode"),
    Alias("pad_token_id", TF, "model.pad_id", refused="prompts are padded with the model's own token, which nobody sees"),
    Alias("mask_id", LLADA, "sk.load(mask_id=…)", refused="the mask token belongs to the model"),
)  # fmt: skip

# Of load.
LOAD = (
    Alias("torch_dtype", TF, "dtype", note='bf16, fp16 and fp32 are names too; "auto" is as stored'),
    Alias("device_map", TF, "device", note='a device, "auto", "balanced" or a mapping of modules'),
    Alias("quantization_config", TF, "quantization", note='BitsAndBytesConfig(…), TorchAoConfig(…); or "int8", "int4"'),
    Alias("load_in_8bit", TF, 'quantization="int8"', refused="weights are packed by torchao, or by a config of transformers"),
    Alias("load_in_4bit", TF, 'quantization="int4"', refused="weights are packed by torchao, or by a config of transformers"),
    Alias("trust_remote_code", TF, "sk.wrap(model)", refused="no code of a checkpoint is run", unless=False,
          note="False is accepted"),
    Alias("attn_implementation", TF, "sk.attend(backend=…)", refused="attention is always ours, since it is what is looked at"),
)  # fmt: skip


def translated(
    settings: Mapping[str, Any], table: tuple[Alias, ...], error: type[SinkscopeError], decoder: str = ""
) -> dict[str, Any]:
    """Settings under our names alone; decoder: what `Decode.family` says."""
    found = dict(settings)
    for alias in table:
        if alias.theirs not in found:
            continue
        value = found.pop(alias.theirs)
        if alias.refused and type(value) is type(alias.unless) and value == alias.unless:
            continue
        if alias.refused:
            raise error(f"{alias.theirs} is not accepted, since {alias.refused}; use {alias.ours}.")
        try:
            made = {alias.ours: value} if alias.translate is None else alias.translate(value, decoder, found)
        except ValueError as why:
            raise error(f"{alias.theirs}={shown(value, 60)} is not accepted, since {why}; use {alias.ours}.") from None
        if twice := sorted(set(made) & set(found)):
            raise error(f"{alias.theirs} and {twice[0]} are the same setting; give one of them.")
        found |= made
    return found


def renamed() -> dict[str, str]:
    """Their names that stand for one of ours without a change of the value."""
    return {one.theirs: one.ours for one in (*DECODE, *LOAD) if one.translate is None and not one.refused}


def our_name(theirs: str) -> str | None:
    """What to write in place of a name of theirs; None where it is not known."""
    return next((one.ours for one in (*DECODE, *LOAD) if one.theirs == theirs), None)
