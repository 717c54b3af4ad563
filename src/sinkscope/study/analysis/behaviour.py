"""What traces say of a model: which tokens its sinks are, how they move, where they stand, what masking did to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkscope.study.analysis.answers import Loaded
from sinkscope.study.analysis.generations import intervals, ratio
from sinkscope.study.analysis.rows import Curve, Kind, Token
from sinkscope.study.analysis.rows_traced import Dynamics, Heads, Layer
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit
from sinkscope.study.units.trace import HEADS

CLASSES = ("static", "moving", "flash", "split", "none")
Key = tuple[str, str, str]  # model, setting, label of the condition
Counts = npt.NDArray[np.float64]


class Generations:
    """All traced generations of one model, setting and condition."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.vocabulary: dict[str, list[str]] = {}
        self.condition: dict[str, Any] = {}


def gather(units: Sequence[Unit], load: Loaded) -> dict[Key, Generations]:
    found: dict[Key, Generations] = {}
    for unit in units:
        if unit.kind == "trace":
            result = load(unit)
            entry = found.setdefault((unit.shown, unit.setting, unit.condition.label), Generations())
            entry.condition = unit.condition.to_dict()
            entry.made += [{"task": unit.task, **one} for one in result["generations"]]
            entry.vocabulary |= result["vocabulary"]
    return found


def token_table(study: Study, traced: dict[Key, Generations], most: int = 12) -> list[Token]:
    """Table 2: the share of the sinks that each token is, with how often it stands on the canvas at all."""
    return [Token(**row) for row in _shares(study, traced, "token", most)]


def kind_table(study: Study, traced: dict[Key, Generations], most: int = 12) -> list[Kind]:
    """The same by kind of token."""
    return [Kind(**row) for row in _shares(study, traced, "kind", most)]


def _shares(study: Study, traced: dict[Key, Generations], by: str, most: int) -> list[dict[str, Any]]:
    rows = []
    for (model, setting, label), entry in traced.items():
        names = {token: (shown if by == "token" else kind, kind) for token, (shown, kind) in entry.vocabulary.items()}
        # Two ids may be written alike; the tokenizer's own id keeps them apart.
        columns = sorted(names, key=_order) if by == "token" else sorted({kind for _, kind in names.values()})
        place = {token: columns.index(token if by == "token" else kind) for token, (_, kind) in names.items()}
        sinks, base = (np.zeros((len(entry.made), len(columns))) for _ in range(2))
        for row, one in enumerate(entry.made):
            for token, (marked, there) in one["tokens"].items():
                sinks[row, place[token]] += marked
                base[row, place[token]] += there
        share, rate = _part(sinks.sum(0)), _part(base.sum(0))
        low, high = _limits(sinks, study)
        order = sorted(range(len(columns)), key=lambda i: (-share[i], -rate[i], i))[:most]
        rows += [
            {
                "model": model, "setting": setting, "condition": label,
                **({"token": names[columns[i]][0]} if by == "token" else {}),
                "kind": names[columns[i]][1] if by == "token" else columns[i], "share": float(share[i]),
                "low": float(low[i]), "high": float(high[i]), "base": float(rate[i]),
                "enrichment": float(share[i] / rate[i]) if rate[i] else None, "sinks": int(sinks[:, i].sum()),
                "generations": len(entry.made), "rule": study.rules[0]["rule"], "unit": study.rules[0].get("unit"),
            }
            for i in order if sinks[:, i].sum() or by == "kind"
        ]  # fmt: skip
    return rows


def _order(entry: str) -> tuple[int, str]:
    """By id; the name of a role in a template ("82 template") comes after the same word elsewhere ("82")."""
    token, _, kind = entry.partition(" ")
    return int(token), kind


def _part(counts: Counts) -> Counts:
    total = counts.sum()
    return counts / total if total else counts


def _limits(sinks: Counts, study: Study) -> tuple[Counts, Counts]:
    """95 % of the shares when whole generations are drawn with replacement."""
    count = len(sinks)
    weight = np.random.default_rng(study.seed).multinomial(count, np.full(count, 1 / count), study.draws)
    drawn = weight @ sinks
    total = drawn.sum(1, keepdims=True)
    shares = np.divide(drawn, total, out=np.zeros_like(drawn), where=total > 0)
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    return low, high


def dynamics(study: Study, traced: dict[Key, Generations]) -> list[Dynamics]:
    """A row per model, setting and condition: classes of heads, how long sinks live, where they are; then layer by layer."""
    rows = []
    for (model, setting, label), entry in traced.items():
        heads = [head for one in entry.made for head in one["heads"]]
        layers = sorted({head["layer"] for head in heads})
        counts = {name: sum(one["places"][name] for one in entry.made) for name in entry.made[0]["places"]}
        total = counts.pop("sinks")
        first = np.array([one["first_key"] for one in entry.made]).mean(0)
        marked = np.array([one["rules"] for one in entry.made], dtype=np.float64).sum(0)
        keys = sum(one["keys"] for one in entry.made)
        rows.append(
            Dynamics(
                model=model, setting=setting, condition=label, generations=len(entry.made), **_heads(heads),
                sinks_found=int(total), non_sinks=1 - float(marked[0]) / max(keys, 1),
                places={name: value / total if total else None for name, value in counts.items()},
                rules=[{**rule, "sink_share": float(m) / max(keys, 1)} for rule, m in zip(study.rules, marked, strict=True)],
                layers=[
                    Layer(layer=layer, first_key=float(first[place]), **_heads([h for h in heads if h["layer"] == layer]))
                    for place, layer in enumerate(layers)
                ],
                rule=study.rules[0]["rule"], unit=study.rules[0].get("unit"), epsilon=study.rules[0].get("epsilon"),
                intervals=intervals(study, entry.made, entry.vocabulary), columns=_columns(entry.made),
            )
        )  # fmt: skip
    return rows


def _columns(made: list[dict[str, Any]]) -> Heads | None:
    """The heads of an ARM by their columns so far."""
    heads = [head for one in made for head in one.get("columns", ())]
    return Heads(**_heads(heads)) if heads else None


def _heads(heads: list[dict[str, Any]]) -> dict[str, Any]:
    count = len(heads)
    found: dict[str, Any] = {name: sum(head["class"] == name for head in heads) / count for name in CLASSES}
    for way in ("left", "right", "wander"):
        found[way] = sum(head["direction"] == way for head in heads) / count
    for name in HEADS:
        values = [head[name] for head in heads if head[name] is not None]
        found[name] = float(np.mean(values)) if values else None
    return found


def curves(study: Study, traced: dict[Key, Generations]) -> list[Curve]:
    """Share of the keys that are no sinks, against epsilon, in each unit."""
    rows = []
    for (model, setting, label), entry in traced.items():
        counts: dict[tuple[str, float], list[tuple[int, int]]] = {}
        for one in entry.made:
            for unit, epsilon, sinks, keys in one.get("curve", []):
                counts.setdefault((unit, epsilon), []).append((sinks, keys))
        rows += [
            Curve(model, setting, label, unit, epsilon, *_left_over(study, np.array(found, dtype=np.float64)))
            for (unit, epsilon), found in counts.items()
        ]
    return rows


def _left_over(study: Study, counts: Counts) -> tuple[float, float, float]:
    """Share of the keys that are no sinks, with its interval; counts: [generation, (sinks, keys)]."""
    found = ratio(study, counts[:, 1] - counts[:, 0], counts[:, 1])
    return (found.value, found.low, found.high) if found else (1.0, 0.0, 1.0)
