"""The golden reference figures: the set beside this file, and any others named in SINKSCOPE_GOLDEN."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sinkscope.decoding import Decode
from sinkscope.interventions import Intervention, MaskBuiltIn, MaskPositions
from sinkscope.models import Model, load

HERE = Path(__file__).parent / "golden"
# With the kernels that made them the sets hold to 1e-5; others add in another order, and 1e-4 is the sets' own limit.
AS_MADE = torch.backends.cpu.get_cpu_capability() == "AVX2"
LOGITS = 1e-5 if AS_MADE else 1e-4
SAME = 1e-6 if AS_MADE else 1e-4  # where the mathematics is the same to the letter
FAMILIES = ("llada", "dream", "mmada")
NEWER = ("llada2", "sdar", "a2d")  # block diffusion and adapted models: another form, see golden/newer/README.md
NEWEST = ("nemotron_labs_diffusion", "illada", "wedlm", "rnd1", "diffusion_gemma")  # see golden/newest/README.md
SMALL = ("mdlm", "bd3lm", "gidd", "gidd_v2", "sedd")  # published on laptops' scale: see golden/small/VERIFY.md
CONFIDENCE = {"low_confidence": "probability", "random": "random"}


@dataclass(frozen=True)
class Golden:
    """One family of one set."""

    folder: Path

    @property
    def family(self) -> str:
        return self.folder.name

    @property
    def facts(self) -> dict[str, Any]:
        return _facts(self.folder)

    @property
    def model(self) -> Model:
        return _model(self.folder)

    def tensor(self, name: str) -> Tensor:
        return _tensors(self.folder)[name]

    def optional(self, name: str | None) -> Tensor | None:
        return None if name is None else self.tensor(name)

    def settings(self, case: dict[str, Any]) -> Decode:
        """The case's settings as a `Decode`, through the constructor of its family."""
        seed = case["seed"] or 0
        if self.family == "dream":
            used = case["effective"]
            return Decode.dream(
                length=used["max_new_tokens"], steps=used["steps"], algorithm=used["alg"], epsilon=used["eps"],
                seed=seed, algorithm_temperature=used["alg_temp"], temperature=used["temperature"], top_p=used["top_p"],
                top_k=used["top_k"],
            )  # fmt: skip
        used = case["settings"]
        words = {
            "length": used["gen_length"], "block": used["block_length"], "steps": used["steps"], "seed": seed,
            "temperature": used["temperature"], "guidance": used["cfg_scale"],
            "confidence": CONFIDENCE[used["remasking"]],
        }  # fmt: skip
        if self.family == "llada":
            words["forbid_eos"] = used.get("logits_eos_inf", False)
            words["late_eos"] = used.get("confidence_eos_eot_inf", False)
            words["eos_id"], words["eot_id"] = case.get("eos_id"), case.get("eot_id")
        settings: Decode = getattr(Decode, self.family)(**words)
        return settings


class NewerGolden(Golden):
    """A family of the newer form: cases name their sampler or version, and batches hold prompts of unequal length."""

    def prompt(self, case: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """ids [batch, position], right-padded, and their attention mask (None where nothing is padded)."""
        if "prompt" in case:
            return self.tensor(case["prompt"]), None
        rows = [self.tensor(name).flatten() for name in case["prompts"]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=case["special_ids"]["pad"])
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return ids, None if bool(mask.all()) else mask

    def settings(self, case: dict[str, Any]) -> Decode:
        made: Decode = getattr(self, f"_{self.family}")(case, case["settings"], case["seed"] or 0)
        return made

    def _llada2(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        words = {
            "length": used["gen_length"], "block": used["block_length"], "threshold": used["threshold"], "seed": seed,
            "eos_id": used["eos_id"], "early_stop": used.get("eos_early_stop", False), "top_p": used.get("top_p"),
            "temperature": used.get("temperature", 0.0), "top_k": used.get("top_k"),
        }  # fmt: skip
        if case["version"] == "2.0":
            return Decode.llada2(**words, steps=used["steps"], minimal_topk=used.get("minimal_topk", 1))
        own = ("editing_threshold", "max_post_steps", "num_to_transfer")
        return Decode.llada21(**words, **{name: used[name] for name in own if name in used})

    def _sdar(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        return Decode.sdar(
            length=used["gen_length"], block=used["block_length"], steps=used["denoising_steps"], seed=seed,
            rule=used["remasking_strategy"].removeprefix("low_confidence_"), temperature=used["temperature"],
            threshold=used.get("confidence_threshold", 0.85), top_p=used["top_p"], top_k=used["top_k"] or None,
            stop_ids=used["stopping_criteria_idx"] or (), overwrite="reference",
        )  # fmt: skip

    def _a2d(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        words = {
            "length": used["max_new_tokens"], "block": used["block_size"], "steps": used["steps"], "seed": seed,
            "temperature": used["temperature"], "confidence": CONFIDENCE[used["remasking"]],
            "stochastic": used["stochastic_transfer"], "guidance": used["cfg_scale"],
            "guidance_keep": used.get("cfg_keep_tokens") or (), "suppress": used.get("suppress_tokens") or (),
            "begin_suppress": used.get("begin_suppress_tokens") or (), "shift": used["right_shift_logits"],
            "eos_id": case["special_ids"]["eos"],
        }  # fmt: skip
        if case["sampler"] == "mdlm":
            return Decode.mdlm(**words)
        return Decode.bd3lm(**words, steps_per_block=used.get("steps_per_block"), pad_id=case["special_ids"]["pad"])


class NewestGolden(Golden):
    """A family of the newest form: every case names its settings in the words of the authors' sampler."""

    def prompt(self, case: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """ids [batch, position] and their attention mask; RND1's begin token is a prompt of one token."""
        if case.get("prompt") is None:
            return torch.tensor([[case["settings"]["bos_token_id"]]]), None
        ids = self.tensor(case["prompt"])
        if self.family != "wedlm":
            return ids, self.optional(case.get("attention_mask"))
        mask = (ids != self.facts["special_ids"]["pad"]).long()
        return ids, None if bool(mask.all()) else mask

    def settings(self, case: dict[str, Any]) -> Decode:
        made: Decode = getattr(self, f"_{self.family}")(case, case["settings"], case.get("seed") or 0)
        return made

    def _nemotron_labs_diffusion(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        mode = {"diffusion": "diffusion", "ar": "autoregressive", "linear_spec": "self_speculation"}[case["mode"]]
        return Decode.nemotron(
            length=used["max_new_tokens"], block=used.get("block_length", 32), threshold=used.get("threshold"), mode=mode,
            causal_context=used.get("causal_context", True), temperature=used.get("temperature", 0.0), seed=seed,
            eos_id=used["eos_token_id"], max_thinking_tokens=used.get("max_thinking_tokens"),
            end_think_id=used.get("end_think_token_id"),
            **({"stop": "never"} if used["eos_token_id"] is None else {}),
        )  # fmt: skip

    def _diffusion_gemma(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        return Decode.diffusion_gemma(
            length=used["max_new_tokens"], block=self.model.module.config.canvas_length, seed=seed, t_min=used.get("t_min"),
            t_max=used.get("t_max"), steps=used["max_denoising_steps"], gamma=used.get("entropy_bound"),
            eos_id=used.get("eos_token_id"),
            threshold=used.get("confidence_threshold"), stability=used.get("stability_threshold"),
            **({"stop": "never"} if used.get("eos_token_id") is None else {}),
        )  # fmt: skip

    def _illada(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        return Decode.llada(
            length=used["gen_length"], block=used["block_length"], steps=used["steps"], seed=seed,
            temperature=used.get("temperature", 0.0), guidance=used.get("cfg_scale", 0.0),
            confidence=CONFIDENCE[used.get("remasking", "low_confidence")],
        )  # fmt: skip

    def _wedlm(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        return Decode.wedlm(
            length=used["max_new_tokens"], block=used["block_size"], threshold=used.get("confidence_threshold"),
            temperature=used.get("temperature", 1.0),
        )  # fmt: skip

    def _rnd1(self, case: dict[str, Any], used: dict[str, Any], seed: int) -> Decode:
        suffix = self.optional(case.get("suffix"))
        return Decode.rnd1(
            total_length=used["seq_len"], steps=used["num_steps"], temperature=used.get("temperature", 1.0), seed=seed,
            greedy=used.get("greedy", True), top_k=used.get("top_k") or None, top_p=used.get("top_p"), gamma=used.get("eb_gamma"),
            suffix=() if suffix is None else suffix.flatten().tolist(), infill_length=used.get("infill_length"),
            eos_id=used.get("eos_token_id"), eos_at_end=used.get("add_eos_at_end", False),
        )  # fmt: skip


class SmallGolden(Golden):
    """A small family: a case without a prompt begins empty; one with a prompt names its whole canvas, −1 where it is open."""

    def prompt(self, case: dict[str, Any]) -> tuple[Tensor, int]:
        """ids [batch, position], and how many tokens are written behind them."""
        if "start" in case:
            return self.tensor(case["start"]), 0
        length = case.get("max_length") or case.get("seqlen") or case.get("length") or self._width
        if "prompt" not in case:
            begins = int(self.family == "bd3lm")  # its first token is given, and the canvas has it
            return torch.empty(case["batch"], 0, dtype=torch.int64), length - begins
        ids = self.tensor(case["prompt"])
        if self.family == "gidd_v2":
            return ids, length
        ids = ids.masked_fill(ids < 0, self.facts["mask_id"])
        if self.family == "bd3lm":
            ids[:, 0] = self.facts["bos_id"]
        return ids, max(length - ids.shape[1], 0)

    @property
    def _width(self) -> int:
        return int(self.facts.get("model_length") or self.facts["max_seq_len"])

    def settings(self, case: dict[str, Any]) -> Decode:
        made: Decode = getattr(self, f"_{self.family}")(case, self.prompt(case)[1])
        return made

    def _mdlm(self, case: dict[str, Any], length: int) -> Decode:
        if case["predictor"] == "semi_ar":
            return Decode.mdlm_dit(
                length=length + case["num_strides"] * case["stride_length"], predictor="semi_ar", seed=case["seed"],
                window=length, stride=case["stride_length"], dt=case["dt"],
            )  # fmt: skip
        return Decode.mdlm_dit(
            length=length, predictor=case["predictor"], seed=case["seed"], steps=case["steps"],
            noise_removal=case["noise_removal"],
        )  # fmt: skip

    def _bd3lm(self, case: dict[str, Any], length: int) -> Decode:
        return Decode.bd3lm_dit(
            length=length, block=case["block_size"], steps=case["num_steps"], seed=case["seed"], eos_id=case["eos_id"],
            first_hitting=case["first_hitting"], nucleus=case["nucleus_p"], window=case["context_size"],
            var_length=case["var_length"], cache="exact" if case["kv_cache"] else None,
        )  # fmt: skip

    def _gidd(self, case: dict[str, Any], length: int) -> Decode:
        if case["kind"] == "self_correction":
            return Decode.gidd_correction(
                length=self.tensor(case["start"]).shape[1], steps=case["steps"], seed=case["seed"], time=case["t0"],
                temperature=case["temperature"], early_stop=case["early_stopping"],
                patience=case["early_stopping_patience"],
            )  # fmt: skip
        return Decode.gidd(
            length=length, steps=case["steps"], seed=case["seed"], p_uniform=case["p_uniform"], min_p=case["min_p"],
            rule="mdlm" if case["kind"] == "mdlm_sampler" else "gidd",
        )  # fmt: skip

    def _gidd_v2(self, case: dict[str, Any], length: int) -> Decode:
        return Decode.gidd_v2(
            length=length, block=case["block_length"], steps=case["steps"], seed=case["seed"], top_k=case["top_k"],
            temperature=case["temperature"], method=case["sampling_method"], top_p=case["top_p"],
            tokens_per_step=case["tokens_per_step"], schedule=case["noise_schedule"], noise_type=case["noise_type"],
            min_length=case["min_length"], eos_id=case["eos_token_id"],
        )  # fmt: skip

    def _sedd(self, case: dict[str, Any], length: int) -> Decode:
        return Decode.sedd(
            length=length, predictor=case["predictor"], steps=case["steps"], denoise=case["denoise"], seed=case["seed"]
        )

    def interventions(self, case: dict[str, Any]) -> list[Intervention]:
        """What a case hides from all queries."""
        columns = case.get("hide_columns_bias_key_is_0") or ()
        hidden = tuple(column - 1 for column in columns if column)
        found: list[Intervention] = [MaskBuiltIn()] if 0 in columns else []
        if hidden:
            found.append(MaskPositions(hidden))
        if "hide" in case:
            facts = case["hide"]
            steps = (facts["from_forward"], None) if "from_forward" in facts else None
            found.append(MaskPositions(tuple(facts["keys"]), layers=facts.get("layers"), steps=steps))
        return found

    def model_for(self, case: dict[str, Any]) -> Model:
        """The model, which is told the time where the case says so."""
        if case.get("attention_bias") is False:
            return _changed_model(self.folder, {"attention_bias": False})
        return _changed_model(self.folder, {"time_conditioning": True}) if case.get("time_conditioning") else self.model


@cache
def _changed(folder: Path, changes: str) -> Model:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        config = {**json.loads((folder / "config.json").read_text()), **json.loads(changes)}
        (copy / "config.json").write_text(json.dumps(config))
        tensors = load_file(folder / "model.safetensors")
        dropped = () if config.get("attention_bias", True) else ("k_bias", "v_bias")
        save_file(
            {key: one for key, one in tensors.items() if not key.endswith(dropped or ("-",))},
            copy / "model.safetensors",
        )
        return load(copy)


def _changed_model(folder: Path, changes: dict[str, Any]) -> Model:
    return _changed(folder, json.dumps(changes))


class CacheGolden(Golden):
    """A family of the set for caches and samplers, see golden/caches/README.md."""

    def prompt(self, case: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """ids [batch, position] and their attention mask (None where nothing is padded)."""
        ids = torch.tensor(case["prompt_ids"])
        if not case.get("left_padded"):
            return ids, None
        mask = ((ids != self.facts["special_ids"]["pad"]).cumsum(1) > 0).long()
        return ids, None if bool(mask.all()) else mask

    def found(self, case: dict[str, Any], name: str) -> Tensor:
        return self.tensor(case["tensors"][name]["name"])


Kind = TypeVar("Kind", bound=Golden)


@cache
def _facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "golden.json").read_text())
    return facts


@cache
def _tensors(folder: Path) -> dict[str, Tensor]:
    return dict(load_file(folder / "golden.safetensors"))


@cache
def _model(folder: Path) -> Model:
    # dllm keeps the mask token in its tokenizer, and no golden folder has one.
    return load(folder, mask_id=_facts(folder)["special_ids"]["mask"] if folder.name in NEWER else None)


def golden_sets() -> Iterator[tuple[str, Golden]]:
    """(name for the test's id, one family of one set), over all sets that this machine has."""
    return _sets(FAMILIES, Golden)


def newer_sets() -> Iterator[tuple[str, NewerGolden]]:
    """The same for the families that came later."""
    return _sets(NEWER, NewerGolden)


def _sets(families: tuple[str, ...], kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    others = [Path(path) for path in os.environ.get("SINKSCOPE_GOLDEN", "").split(os.pathsep) if path]
    for folder in [HERE, HERE / "newer", HERE / "newest", HERE / "small", HERE / "caches", *others]:
        for family in families:
            if not (folder / family / "golden.json").is_file():
                continue
            found = kind(folder / family)
            of_caches = found.facts.get("format") == "caches-1"  # which has the same families in a form of its own
            if of_caches == issubclass(kind, CacheGolden):
                yield f"{folder.name}-{family}", found


def cache_cases(*methods: str) -> list[Any]:
    """(family, case) of the set for caches and samplers; methods: METHOD or METHOD/IMPLEMENTATION."""
    return [
        pytest.param(found, {**case, "name": case_name}, id=f"{name}-{case_name}")
        for name, found in _sets(("llada", "dream"), CacheGolden)
        for case_name, case in found.facts["cases"].items()
        if any(case_name.startswith(f"{method}/") for method in methods)
    ]


def newest_sets() -> Iterator[tuple[str, NewestGolden]]:
    return _sets(NEWEST, NewestGolden)


def small_sets() -> Iterator[tuple[str, SmallGolden]]:
    return _sets(SMALL, SmallGolden)


def small(family: str) -> SmallGolden:
    """A small family of the set that is in the repository."""
    return SmallGolden(HERE / "small" / family)


def small_cases(kind: str, *families: str) -> list[Any]:
    """kind: "forward" or "generation"."""
    return [
        pytest.param(found, case, id=f"{name}-{case['name']}")
        for name, found in small_sets()
        for case in found.facts[kind]
        if found.family in (families or SMALL)
    ]


def newest(family: str) -> NewestGolden:
    """A newest family of the set that is in the repository."""
    return NewestGolden(HERE / "newest" / family)


def newest_generations(*families: str) -> list[Any]:
    return [
        pytest.param(found, case, id=f"{name}-{case['name']}")
        for name, found in newest_sets()
        for case in found.facts["generation"]
        if found.family in families
    ]


def newest_by_family(*families: str) -> list[Any]:
    return [pytest.param(found, id=name) for name, found in newest_sets() if found.family in (families or NEWEST)]


def golden(family: str) -> Golden:
    """A family of the set that is in the repository."""
    return Golden(HERE / family)


def by_family() -> list[Any]:
    return [pytest.param(found, id=name) for name, found in golden_sets()]


def generations() -> list[Any]:
    return [
        pytest.param(found, case, id=f"{name}-{case['name']}")
        for name, found in golden_sets()
        for case in found.facts["generation"]
    ]


def newer_by_family() -> list[Any]:
    return [pytest.param(found, id=name) for name, found in newer_sets()]


def newer_generations() -> list[Any]:
    return [
        pytest.param(found, case, id=f"{name}-{case['name']}")
        for name, found in newer_sets()
        for case in found.facts["generation"]
    ]


def newer(family: str) -> NewerGolden:
    """A newer family of the set that is in the repository."""
    return NewerGolden(HERE / "newer" / family)


def parallel_cases() -> list[Any]:
    return [
        pytest.param(found, case, id=f"{name}-{case['name']}")
        for name, found in golden_sets()
        for case in found.facts.get("fast_dllm", {}).get("cases", [])
    ]
