"""The golden reference figures: the set beside this file, and any others named in SINKSCOPE_GOLDEN."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from sinkscope.decoding import Decode
from sinkscope.models import Model, load

HERE = Path(__file__).parent / "golden"
# The sets' own limit. On the processor that made them the kernels agree to 1e-5; another one adds in another order.
LOGITS = 1e-4
FAMILIES = ("llada", "dream", "mmada")
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


@cache
def _facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "golden.json").read_text())
    return facts


@cache
def _tensors(folder: Path) -> dict[str, Tensor]:
    return dict(load_file(folder / "golden.safetensors"))


@cache
def _model(folder: Path) -> Model:
    return load(folder)


def golden_sets() -> Iterator[tuple[str, Golden]]:
    """(name for the test's id, one family of one set), over all sets that this machine has."""
    others = [Path(path) for path in os.environ.get("SINKSCOPE_GOLDEN", "").split(os.pathsep) if path]
    for folder in [HERE, *others]:
        for family in FAMILIES:
            if (folder / family / "golden.json").is_file():
                yield f"{folder.name}-{family}", Golden(folder / family)


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


def parallel_cases() -> list[Any]:
    return [
        pytest.param(found, case, id=f"{name}-{case['name']}")
        for name, found in golden_sets()
        for case in found.facts.get("fast_dllm", {}).get("cases", [])
    ]
