"""Claims about where sinks are and what they do, from traces with nothing masked; and about confidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sinkscope.study.analysis.agreement import above, agreement, figure, least, share, value
from sinkscope.study.analysis.rows import Claim, Curve, Value
from sinkscope.study.analysis.rows_traced import Dynamics, Mechanism
from sinkscope.study.analysis.verdicts import FEW, HALF, STRONG, later, less_sure

LEFT_OUT = 0.96  # share of the tokens that the paper's epsilon leaves out
EPSILON = 3.0
GENERATIONS = 3  # fewer decide nothing
Tables = Mapping[str, Sequence[Any]]


def _dlms(tables: Tables) -> list[Dynamics]:
    return [row for row in tables["dynamics"] if row.condition == "none" and row.intervals and row.columns is None]


def _arms(tables: Tables) -> list[Dynamics]:
    return [row for row in tables["dynamics"] if row.condition == "none" and row.intervals and row.columns is not None]


def _values(rows: Sequence[Dynamics], name: str, label: str) -> list[Value]:
    """One figure of each model that has it."""
    return [
        value(f"{row.model}: {label}", row.intervals[name], row.generations)
        for row in rows
        if row.intervals and name in row.intervals
    ]


def _above(found: Value, limit: float) -> bool | None:
    """On which side of the limit a figure lies; a few generations say nothing, however narrow their interval."""
    return above(found, limit) if found.n >= GENERATIONS else None


def _apart(one: Value, other: Value) -> bool | None:
    """Is one above the other, by whole intervals?"""
    if one.n < GENERATIONS:
        return None
    return True if one.low > other.high else False if one.high < other.low else None


def exist(tables: Tables) -> Iterator[Claim]:
    found = _values(_dlms(tables), "with_sink", "heads with a sink")
    if not found:
        return
    lowest = least(found)
    yield Claim(
        "sinks_exist", "Sinks exist in every diffusion model.", agreement([_above(one, FEW) for one in found]),
        figure(f"≥ {share(lowest)} of heads"),
        f"A model has sinks where more than {100 * FEW:.0f} % of its heads have one at some step; {len(found)} diffusion "
        f"models were traced; {lowest.label.split(':')[0]} has the fewest.", "none", found,
    )  # fmt: skip


def move(tables: Tables) -> Iterator[Claim]:
    dlms, arms = _dlms(tables), _arms(tables)
    moving, static = _values(dlms, "static", "static heads"), _values(arms, "static", "static heads, columns so far")
    first = _values(arms, "key_0", "attention on key 0")
    if not moving or not static:
        return
    moves = [_turned(_above(one, HALF)) for one in moving]
    stands = [_above(one, HALF) for one in static]
    start = [_above(one, STRONG) for one in first]
    dlm, arm = max(moving, key=lambda one: one.value), least(static)
    yield Claim(
        "moving", "Sinks of diffusion models move; those of the autoregressive model stand still at the start.",
        agreement([*moves, *stands, *start]), figure(f"static: DLMs ≤ {share(dlm)}, ARMs ≥ {share(arm)}"),
        f"Heads with sinks that are static: fewer than half in {sum(map(bool, moves))} of {len(moves)} diffusion models, more "
        f"than half in {sum(map(bool, stands))} of {len(stands)} ARMs (columns so far); key 0 draws more than {STRONG} of the "
        f"attention in {sum(map(bool, start))} of {len(start)}.", "none", [*moving, *static, *first],
    )  # fmt: skip


def _turned(held: bool | None) -> bool | None:
    return None if held is None else not held


def structural(tables: Tables) -> Iterator[Claim]:
    rows = [row for row in _dlms(tables) if row.intervals and "structural" in row.intervals]  # those that have sinks
    found = _values(rows, "structural", "sinks on structural tokens")
    base = _values(rows, "structural_base", "structural tokens on the canvas")
    if not found:
        return
    lowest, highest = least(found), max(found, key=lambda one: one.value)
    enriched = [_apart(a, b) for a, b in zip(found, base, strict=True)]
    both = share(lowest) if lowest is highest else f"{share(lowest)} to {share(highest)}"
    ends = dict.fromkeys(f"{100 * end(one.value for one in base):.0f}" for end in (min, max))
    canvas = f"{'–'.join(ends)} %"
    yield Claim(
        "structural", "Sinks are structural tokens: punctuation, newline, mask, template.",
        agreement([*(_above(one, HALF) for one in found), *enriched]), figure(f"{both}; {canvas} of the canvas"),
        f"More than half of the sinks are structural tokens in {sum(one.low > HALF for one in found)} of {len(found)} "
        f"diffusion models, and more than of the canvas, of which {canvas} is structural, in {sum(map(bool, enriched))}.",
        "none", [*found, *base],
    )  # fmt: skip


def threshold(tables: Tables) -> Iterator[Claim]:
    dlms = {row.model for row in _dlms(tables)}
    rows: list[Curve] = [
        row for row in tables["curves"]
        if row.model in dlms and row.condition == "none" and row.epsilon == EPSILON and row.unit in ("sum", "percent")
    ]  # fmt: skip
    found = [
        Value(f"{row.model}: {row.unit}", row.non_sinks, row.low, row.high, 0)
        for row in rows
        if row.low is not None and row.high is not None
    ]
    if not found:
        return
    counts = {row.model: row.generations for row in _dlms(tables)}
    found = [Value(one.label, one.value, one.low, one.high, counts[one.label.split(":")[0]]) for one in found]
    lowest = least(found)
    yield Claim(
        "threshold", "An epsilon of 3 leaves at least 96 % of the tokens out.",
        agreement([_above(one, LEFT_OUT) for one in found]),
        figure(f"≥ {_share(lowest)} in units of {lowest.label.split(': ')[1]}"),
        "The paper does not say in which unit its epsilon is: column sums and percent are the two readings that fit its "
        f"figures, and both are tested in every diffusion model; {lowest.label.split(':')[0]} leaves the least out.", "none", found,
    )  # fmt: skip


def _share(found: Value) -> str:
    return f"{100 * found.value:.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def deeper(tables: Tables) -> Iterator[Claim]:
    dlms = _dlms(tables)
    fewer = _values(dlms, "deep_sinks", "sinks per step and head, deep − shallow")
    stronger = _values(dlms, "deep_strength", "strength, deep − shallow")
    if not fewer or not stronger:
        return
    holds = [_turned(_above(one, 0.0)) for one in fewer] + [_above(one, 0.0) for one in stronger]
    most, weakest = max(fewer, key=lambda one: one.value), least(stronger)
    yield Claim(
        "deeper", "Deeper layers have fewer and stronger sinks.", agreement(holds),
        figure(f"number {_span(most)}, strength {_span(weakest)}"),
        f"Last third of the layers less the first third: fewer sinks per step in {sum(one.high < 0 for one in fewer)}, "
        f"stronger ones in {sum(one.low > 0 for one in stronger)} of {len(fewer)} diffusion models; shown is the model that "
        "fits least.", "none", [*fewer, *stronger],
    )  # fmt: skip


def _span(found: Value) -> str:
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def confidence(tables: Tables) -> Iterator[Claim]:
    rows: list[Mechanism] = [row for row in tables["mechanism"] if row.confidence_gap_beyond_random is not None]
    if not rows:
        return
    sure = [_told(less_sure(row), row) for row in rows]
    late = [_told(later(row), row) for row in rows]
    judged = [one for one in late if one is not None]
    when = f"later in {sum(judged)} of {len(judged)}" if judged else "too few for later"
    values = []
    for row in rows:
        for name, label in (
            ("confidence_gap_beyond_random", f"confidence beyond random ({row.unit})"),
            ("free_delay_gap_beyond_random", "delay beyond random (steps)"),
            ("free_delay_beyond_random", "delay of all positions beyond random (steps)"),
        ):
            if (found := getattr(row, name)) is not None:
                values.append(value(f"{row.model} K={row.k}: {label}", found, _count(row, name)))
    test = (
        "with commits by a threshold" if any(row.free_delay_sinks_gap for row in rows) else "under one commit per step"
    )
    yield Claim(
        "confidence", "Confidence falls where tokens depended on the sink, so they are committed later.",
        agreement([*sure, *late]), figure(f"less sure in {sum(map(bool, sure))} of {len(rows)}, {when}"),
        f"Of {len(rows)} tests (model and K), confidence falls more in the half that looked at the masked sinks in "
        f"{sum(map(bool, sure))} "
        f"and that half is committed later in {sum(map(bool, late))} of the {len(judged)} that can tell ({test}), each beyond "
        "as many random keys (95 % intervals).",
        f"mask sinks K={rows[0].k} clean by all rows", values,
    )  # fmt: skip


def _count(row: Mechanism, name: str) -> int:
    return row.free_problems or 0 if name.startswith("free") else row.problems


def _told(held: bool | None, row: Mechanism) -> bool | None:
    """A handful of problems that show nothing say nothing."""
    return held if held or row.problems >= 20 else None
