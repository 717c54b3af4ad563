"""Claims about what masking costs: one sink of a diffusion model, and the sink of an autoregressive one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sinkscope.study.analysis import pair
from sinkscope.study.analysis.agreement import agreement, figure, least, loss
from sinkscope.study.analysis.decisions import able, decide
from sinkscope.study.analysis.losses import MATCHED
from sinkscope.study.analysis.rows import Claim, Likelihood, PooledCell, Value
from sinkscope.study.analysis.wording import percent

HALF = math.log(2)  # nats per token that halve the probability of a text's next token
# What a masked key is, by what its condition says beside k, rank and rows; those that the claim is judged by come first.
KEYS = {
    "structural key": {"kinds": "structural"},
    "strong sink": {"above": "head_share"},
    "any top key": {},
    "content key": {"kinds": "content"},
    "weak top key": {"below": "head_share"},
}
JUDGED = ("structural key", "strong sink", "any top key")
HOLDS: Mapping[str, bool | None] = {"robust": True, "dependent": False, "undecided": None}
ENOUGH = 0.01  # share of the attention that must be taken before a test says that taking it costs nothing


def one_sink_of_a_dlm(tables: Mapping[str, Sequence[Any]], margin: float) -> Iterator[Claim]:
    """Structural keys, strong sinks and any top key, one per head, each with its random controls.

    By right answers where a model writes them, and by the likelihood of true answers where that was measured instead.
    """
    answers = {name: [row for row in _able(tables, causal=False) if _is(row, says)] for name, says in KEYS.items()}
    likely = {name: [row for row in _likely(tables) if _is(row, says)] for name, says in KEYS.items()}
    judged = {name: answers[name] for name in JUDGED if answers[name]}
    said = {
        name: [*(_said(row, margin) for row in answers[name]), *(_said_nats(row, margin) for row in likely[name])]
        for name in JUDGED if answers[name] or likely[name]
    }  # fmt: skip
    if not said:
        return
    values = [_value(f"{row.model}: {name}", row) for name, rows in answers.items() for row in rows]
    values += [_nats(f"{row.model}: {name}", row) for name, rows in likely.items() for row in rows]
    for name, says in KEYS.items():
        for match in ("count", "mass"):
            words, control = {**says, "match": match}, f", {match}-matched random"
            values += [_value(f"{row.model}: {name}{control}", row) for row in _able(tables, causal=False)
                       if _is(row, words, "mask_random")]  # fmt: skip
            values += [_nats(f"{row.model}: {name}", row, control) for row in _likely(tables)
                       if _is(row, words, "mask_random")]  # fmt: skip
    taken = {
        name: max([row.mass_share or 0.0 for row in answers[name]] + [row.mass_share or 0.0 for row in likely[name]])
        for name in said
    }
    labels = [row.label for name in JUDGED for row in answers[name]] + [
        r.label for name in JUDGED for r in likely[name]
    ]
    yield Claim(
        "one_sink", "Masking one sink costs a diffusion model almost nothing.",
        agreement([HOLDS[one] for every in said.values() for one in every if one != "no test"]), figure(_worst(judged, likely)),
        f"{_because(said, taken, margin)} {_random(judged)}{_random_nats(tables, likely)}", labels[0], values,
    )  # fmt: skip


def _worst(judged: Mapping[str, Sequence[PooledCell]], likely: Mapping[str, Sequence[Likelihood]]) -> str:
    """The largest loss of right answers, and beside it the largest in nats of the models that were only scored."""
    told = []
    nats = [row for name in JUDGED for row in likely[name]]
    short = {"structural key": "structural", "strong sink": "strong", "any top key": "any top"}
    shown = [name for name in judged if name != "strong sink"] or list(judged)
    for name in shown[: 1 if nats else None]:  # a line has room for two figures
        what = "" if nats else f"{short[name]} "
        told.append(f"{what}{loss(least([_value(name, row) for row in judged[name]]))}")
    if told:
        told[-1] += " points"
    if nats:
        row = min(nats, key=lambda row: row.difference)
        told.append(f"{row.model} {row.difference:+.2f} [{row.difference_low:+.2f}, {row.difference_high:+.2f}] nats")
    return "; ".join(told)


def _likely(tables: Mapping[str, Sequence[Any]], causal: bool = False) -> list[Likelihood]:
    """Rows on the likelihood of true answers."""
    return [row for row in tables["likelihood"] if row.of == "answers" and row.causal == causal]


def _able(tables: Mapping[str, Sequence[Any]], causal: bool) -> list[PooledCell]:
    return [able(row) for row in tables["pooled"] if row.causal == causal and row.able is not None]


def _is(row: PooledCell | Likelihood, more: Mapping[str, str], masked: str = "mask_sinks") -> bool:
    """One masked key per head, ranked on unmasked attention by all rows, that says this and nothing else."""
    return pair.says(row.condition) == {**pair.TOP, "name": masked, **more}


def _said(row: PooledCell, margin: float) -> str:
    """Masking that takes hardly any attention is no test of what that attention is for."""
    said = decide(row, margin, row.p_primary).said
    return "no test" if said != "dependent" and (row.mass_share or 0.0) < ENOUGH else said


def _said_nats(row: Likelihood, margin: float) -> str:
    """The margin, which is a share of right answers, as the same share of the probability per token."""
    limit = -math.log1p(-margin)
    if row.difference_high < -limit:
        return "dependent"
    if (row.mass_share or 0.0) < ENOUGH:
        return "no test"
    return "robust" if row.difference_low > -limit else "undecided"


def _nats(label: str, row: Likelihood, control: str = "") -> Value:
    return Value(f"{label} (nats per token){control}", row.difference, row.difference_low, row.difference_high, row.n)


def _value(label: str, row: PooledCell) -> Value:
    return Value(label, row.difference, row.difference_low, row.difference_high, row.n)


def _because(said: Mapping[str, Sequence[str]], taken: Mapping[str, float], margin: float) -> str:
    told = ", ".join(
        f"{name} (at most {100 * taken[name]:.1f} % of attention taken): {_counted(every)}"
        for name, every in said.items()
    )
    return (
        f"One key per head masked, against a margin of {100 * margin:g} points (of right answers, or {100 * margin:g} % of "
        f"the probability per token), over all diffusion models: {told}."
    )


def _counted(said: Sequence[str]) -> str:
    """robust, or 2 dependent and 1 undecided"""
    words = list(dict.fromkeys(said))
    return words[0] if len(words) == 1 else " and ".join(f"{list(said).count(word)} {word}" for word in words)


def _random(judged: Mapping[str, Sequence[PooledCell]]) -> str:
    """Whether the loss is one of sinks at all: random keys of the same mass may cost as much."""
    rows = [row for rows in judged.values() for row in rows if "mass" in row.controls]
    if not rows:
        return "No mass-matched random control was run."
    row = min(rows, key=lambda row: row.difference)
    control = row.controls["mass"]
    sinks, taken = row.mass_share or 0.0, control.mass_share or 0.0
    fair = abs(taken - sinks) <= MATCHED * sinks
    missed = "" if fair else f" (they took {percent(control.mass_share)}, the sinks {percent(row.mass_share)})"
    beyond = 100 * control.difference, 100 * control.difference_low, 100 * control.difference_high
    return (
        f"Where most is lost ({row.model}), sinks cost {beyond[0]:+.0f} [{beyond[1]:+.0f}, {beyond[2]:+.0f}] points "
        f"beyond mass-matched random keys{missed}."
    )


def _random_nats(tables: Mapping[str, Sequence[Any]], likely: Mapping[str, Sequence[Likelihood]]) -> str:
    """The same of models that were only scored."""
    told = ""
    for row in likely["any top key"]:
        for other in _likely(tables):
            if other.model == row.model and _is(other, {"match": "mass"}, "mask_random"):
                told += (
                    f" In {row.model} the top key costs {row.difference:+.2f} nats per token at {percent(row.mass_share)} of the "
                    f"attention, random keys up to its mass {other.difference:+.2f} at {percent(other.mass_share)}."
                )
    return told


def the_sink_of_an_arm(tables: Mapping[str, Sequence[Any]]) -> Iterator[Claim]:
    """Fatal: half of the right answers are lost, or half of the probability per token of held-out text or true answers."""
    values: list[Value] = []
    holds: list[bool | None] = []
    base = {row.model: row.accuracy for row in _able(tables, causal=True) if row.condition["name"] == "none"}
    for row in _able(tables, causal=True):
        if name := _arm_test(row.condition):
            values.append(_value(f"{row.model}: {name}", row))
            limit = -base[row.model] / 2
            holds.append(True if row.difference_high < limit else False if row.difference_low > limit else None)
    nats: list[Value] = []
    scored: list[Likelihood] = [row for row in tables["likelihood"] if row.causal]
    for text in scored:
        if name := _arm_test(text.condition):
            low, high = text.difference_low, text.difference_high
            what = "" if text.of == "texts" else " of true answers"
            nats.append(Value(f"{text.model}: {name} (nats per token{what})", text.difference, low, high, text.n))
            holds.append(True if high < -HALF else False if low > -HALF else None)
    if not holds:
        return
    told = f"{loss(least(values))} points" if values else ""
    if nats:
        worst = least(nats)
        told += f"{'; ' if told else ''}{worst.value:+.1f} [{worst.low:+.1f}, {worst.high:+.1f}] nats"
    count = sum(one is True for one in holds)
    yield Claim(
        "arm_sink", "Masking its sink is fatal for the autoregressive model.", agreement(holds), figure(told),
        f"{count} of {len(holds)} tests cost half of the right answers, or of the probability per token of text or of true "
        "answers: the top key of the last row, the top key of the columns, and position 0, each hidden after a clean prefill.",
        "mask sinks K=1 clean by last row", [*values, *nats],
    )  # fmt: skip


def _arm_test(condition: Mapping[str, Any]) -> str | None:
    known = {
        "last row's top key": {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "last"},
        "column's top key": {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"},
        "position 0": {
            "name": "mask_positions",
            "k": 0,
            "rank": None,
            "rows": None,
            "positions": [0],
            "since": "second",
        },
    }
    return next((name for name, says in known.items() if dict(condition) == says), None)
