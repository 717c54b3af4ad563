"""Rows of traced generations: which tokens the sinks are, how they move, where they are, and the epsilon sweep.

Intervals are over generations: whole generations are sampled with replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sinkscope.results.rows import Curve, Dynamics, Heads, Interval, KindShare, LayerHeads, TokenShare
from sinkscope.sinks.kinds import STRUCTURAL
from sinkscope.statistics import bootstrap_ratio
from sinkscope.study.schema import Study
from sinkscope.study.units import Load, Unit
from sinkscope.tracing.heads import NAMES as CLASSES

MOST = 12  # tokens or kinds of a model
# Columns of the table of heads that go into the results, averaged over generations.
HEADS = (
    "presence", "sinks", "strength", "absorption", "entropy_relative", "lifetime", "jaccard", "one_step_share",
    "displacement", "moves", "trend", "home_share", "value_ratio", "split_share", "agreement",
)  # fmt: skip
Key = tuple[str, str, str]  # model, setting, label of the condition


@dataclass
class Generations:
    """All traced generations of one model, setting and condition."""

    made: list[dict[str, Any]] = field(default_factory=list)
    vocabulary: dict[str, list[str]] = field(default_factory=dict)  # token → how it is shown, kind


def gather(units: Sequence[Unit], load: Load) -> dict[Key, Generations]:
    found: dict[Key, Generations] = {}
    for unit in units:
        if unit.kind == "trace":
            result = load(unit)
            entry = found.setdefault((unit.shown, unit.setting, unit.condition.label), Generations())
            entry.made += result["generations"]
            entry.vocabulary |= result["vocabulary"]
    return found


def token_shares(study: Study, traced: dict[Key, Generations]) -> list[TokenShare]:
    """Table 2: the share of the sinks that each token is, with how often it stands on the canvas at all."""
    rows = []
    for key, entry in traced.items():
        # Two ids may be written alike; the tokenizer's own id keeps them apart.
        # The name of a role in a template ("82 template") comes after the same word elsewhere ("82").
        tokens = sorted(entry.vocabulary, key=lambda token: (int(token.partition(" ")[0]), token))
        place = {token: i for i, token in enumerate(tokens)}
        for i, numbers in _shares(study, entry, place, len(tokens)):
            shown, kind = entry.vocabulary[tokens[i]]
            if numbers["sinks"]:
                rows.append(TokenShare(*key, token=shown, kind=kind, **numbers))
    return rows


def kind_shares(study: Study, traced: dict[Key, Generations]) -> list[KindShare]:
    """The same by kind of token."""
    rows = []
    for key, entry in traced.items():
        kinds = sorted({kind for _, kind in entry.vocabulary.values()})
        place = {token: kinds.index(kind) for token, (_, kind) in entry.vocabulary.items()}
        rows += [KindShare(*key, kind=kinds[i], **numbers) for i, numbers in _shares(study, entry, place, len(kinds))]
    return rows


def _shares(
    study: Study, entry: Generations, place: Mapping[str, int], columns: int
) -> Iterable[tuple[int, dict[str, Any]]]:
    """(column, its numbers) of the columns with the largest shares; place: token → column."""
    sinks, base = (np.zeros((len(entry.made), columns)) for _ in range(2))
    for row, one in enumerate(entry.made):
        for token, (marked, there) in one["tokens"].items():
            sinks[row, place[token]] += marked
            base[row, place[token]] += there
    share, rate = (counts / max(counts.sum(), 1) for counts in (sinks.sum(0), base.sum(0)))
    low, high = bootstrap_ratio(sinks, sinks.sum(1), study.draws, study.seed)
    for i in sorted(range(columns), key=lambda i: (-share[i], -rate[i], i))[:MOST]:
        yield i, {
            "share": float(share[i]), "low": float(low[i]), "high": float(high[i]), "base": float(rate[i]),
            "enrichment": float(share[i] / rate[i]) if rate[i] else None, "sinks": int(sinks[:, i].sum()),
            "generations": len(entry.made), "rule": study.rules[0]["rule"], "unit": study.rules[0].get("unit"),
        }  # fmt: skip


def dynamics(study: Study, traced: dict[Key, Generations]) -> list[Dynamics]:
    """Rows per model, setting and condition: classes of heads, how long sinks live, where they are; then layer by layer.

    The first row is of the whole generation by the first definition of the study; the others, one per definition, are of the
    steps in which the answer is written.
    """
    rows = []
    for key, entry in traced.items():
        rows.append(_dynamics(study, key, entry.made, entry.vocabulary))
        for place, rule in enumerate(study.rules):
            made = [{**one, **one["answer"][place]} for one in entry.made if "answer" in one]
            if made:
                rows.append(_dynamics(study, key, made, entry.vocabulary, rule, "answer"))
    return rows


def _dynamics(
    study: Study, key: Key, made: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, Sequence[str]],
    rule: Mapping[str, Any] | None = None, part: str = "all",
) -> Dynamics:  # fmt: skip
    heads = [head for one in made for head in one["heads"]]
    columns = [head for one in made for head in one.get("columns", ())]  # of an ARM: its columns so far
    counts = {name: sum(one["places"][name] for one in made) for name in made[0]["places"]}
    total = counts.pop("sinks")
    first = np.array([one["first_key"] for one in made]).mean(0)
    marked = np.array([one["rules"] for one in made], dtype=np.float64).sum(0)
    keys = max(sum(one["keys"] for one in made), 1)
    rule = rule or study.rules[0]
    headers = {one["header"] for one in made} - {""}
    return Dynamics(
        *key, generations=len(made), **_heads(heads), sinks_found=int(total), non_sinks=1 - float(marked[0]) / keys,
        places={name: value / total if total else None for name, value in counts.items()},
        rules=[{**one, "sink_share": float(m) / keys} for one, m in zip(study.rules, marked, strict=True)],
        layers=[
            LayerHeads(layer=layer, first_key=float(first[place]), **_heads([h for h in heads if h["layer"] == layer]))
            for place, layer in enumerate(sorted({head["layer"] for head in heads}))
        ],
        rule=rule["rule"], unit=rule.get("unit"), epsilon=rule.get("epsilon"),
        intervals=_intervals(study, made, vocabulary), columns=Heads(**_heads(columns)) if columns else None,
        part=part, headers=len(headers),
    )  # fmt: skip


def _heads(heads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    count = len(heads)
    found: dict[str, Any] = {name: sum(head["class"] == name for head in heads) / count for name in CLASSES}
    for way in ("left", "right", "wander"):
        found[way] = sum(head["direction"] == way for head in heads) / count
    for name in HEADS:
        values = [head[name] for head in heads if head.get(name) is not None]
        found[name] = float(np.mean(values)) if values else None
    return found


def _intervals(
    study: Study, made: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, Sequence[str]]
) -> dict[str, Interval]:
    """What the paper's claims are judged by, by name.

    with_sink: heads that have a sink. static, moving, flash, relocating: of those, by their columns so far in an ARM. start:
    sinks among the first four positions. key_0: attention on key 0. structural, structural_base: share of the sinks, and of the
    canvas, that are structural tokens, mask tokens apart. deep_sinks, deep_strength: last third of the layers less first third.
    """
    heads = [one.get("columns") or one["heads"] for one in made]
    classes = [[head["class"] for head in one] for one in heads]
    having = [len(one) - one.count("none") for one in classes]
    ones = [1] * len(made)
    parts: dict[str, tuple[Iterable[Any], Iterable[Any]]] = {"with_sink": (having, map(len, classes))}
    for name in ("static", "moving", "flash"):
        parts[name] = [one.count(name) for one in classes], having
    parts["relocating"] = [sum(head["relocating"] for head in one) for one in heads], having
    parts["start"] = [one["places"]["start"] for one in made], [one["places"]["sinks"] for one in made]
    parts["key_0"] = [np.mean(one["first_key"]) for one in made], ones
    written = {token for token, (_, kind) in vocabulary.items() if kind != "mask"}
    structural = {token for token in written if vocabulary[token][1] in STRUCTURAL}
    for name, column in (("structural", 0), ("structural_base", 1)):
        counts = [{token: pair[column] for token, pair in one["tokens"].items()} for one in made]
        some = [sum(count for token, count in one.items() if token in structural) for one in counts]
        parts[name] = some, [sum(count for token, count in one.items() if token in written) for one in counts]
    parts["absorption"] = [_mean(one["heads"], "absorption") for one in made], ones
    for name in ("sinks", "strength"):
        parts[f"deep_{name}"] = [_deeper(one["heads"], name) for one in made], ones
    found = {name: _ratio(study, *pair) for name, pair in parts.items()}
    return {name: one for name, one in found.items() if one is not None}


def _mean(heads: Sequence[Mapping[str, Any]], name: str) -> float:
    """Mean over heads; those without a value count as 0."""
    return float(np.mean([head.get(name) or 0.0 for head in heads]))


def _ratio(study: Study, parts: Iterable[Any], wholes: Iterable[Any]) -> Interval | None:
    """Sum of the parts over the sum of the wholes, one of each per generation; None where there is nothing to divide by."""
    part, whole = (np.array(list(values), dtype=np.float64) for values in (parts, wholes))
    if whole.sum() <= 0:
        return None
    low, high = bootstrap_ratio(part, whole, study.draws, study.seed)
    return Interval(float(part.sum() / whole.sum()), float(low), float(high))


def _deeper(heads: Sequence[Mapping[str, Any]], name: str) -> float:
    """Mean of the last third of the layers less that of the first third; heads without a value count as 0."""
    layers = sorted({head["layer"] for head in heads})
    third = max(1, len(layers) // 3)
    first, last = (
        _mean([head for head in heads if head["layer"] in part], name) for part in (layers[:third], layers[-third:])
    )
    return last - first


def curves(study: Study, traced: dict[Key, Generations]) -> list[Curve]:
    """Share of the keys that are no sinks, against epsilon, in each unit."""
    rows = []
    for key, entry in traced.items():
        counts: dict[tuple[str, float], list[tuple[int, int]]] = {}
        for one in entry.made:
            for unit, epsilon, sinks, keys in one.get("curve", []):
                counts.setdefault((unit, epsilon), []).append((keys - sinks, keys))
        for (unit, epsilon), found in counts.items():
            left = _ratio(study, *zip(*found, strict=True)) or Interval(1.0, 0.0, 1.0)
            rows.append(Curve(*key, unit, epsilon, left.value, left.low, left.high))
    return rows
