"""The paper's claims beside what a run says of them, each by a stated rule and from the run's own rows.

A claim is a number of tests that hold (True), fail (False) or say nothing (None); `agreement` makes a word of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sinkscope.study import vocabulary
from sinkscope.study.analysis.losses import decide, solvable
from sinkscope.study.analysis.verdicts import FEW_HEADS, MAJORITY, STRONG, first_point, later, less_sure
from sinkscope.study.analysis.wording import figure, loss, nats, percent, share, span
from sinkscope.study.results import Claim, Dynamics, LikelihoodChange, Match, Mechanism, PooledCell, Tables, Value

Word = Literal["agrees", "agrees in part", "disagrees", "undecided"]
LEFT_OUT = 0.96  # share of the tokens that the paper's epsilon leaves out
EPSILON = 3.0
GENERATIONS = 3  # fewer decide nothing
PROBLEMS = 20  # fewer that show nothing say nothing
LEAST_TAKEN = 0.01  # share of the attention that must be taken before a test says that taking it costs nothing
HALF_PROBABILITY = math.log(2)  # nats per token that halve the probability of a text's next token
# Kinds of one masked key per head as the claim calls them; those that it is judged by come first, with a short form.
KEYS = {
    "structural key": "structural key", "strong sink": "strong sink", "top key": "any top key",
    "content key": "content key", "weak top key": "weak top key",
}  # fmt: skip
JUDGED = {"structural key": "structural", "strong sink": "strong", "top key": "any top"}
ARM_KEYS = {"last row's top key": "last row's top key", "top key": "column's top key", "position 0": "position 0"}
HOLDS: Mapping[str, bool | None] = {"robust": True, "dependent": False, "undecided": None}
MATCHES: Sequence[Match] = ("count", "mass")
Row = PooledCell | LikelihoodChange


def claims(tables: Tables, margin: float) -> list[Claim]:
    """Every claim that the run can speak to; margin: in shares. Of a sweep the first point is judged."""
    here = first_point(tables)
    made = [
        _exist(here), _move(here), _one_sink_of_a_dlm(here, margin), _sink_of_an_arm(here), _structural(here),
        _threshold(here), _deeper(here), _confidence(here),
    ]  # fmt: skip
    return [claim for claim in made if claim is not None]


def agreement(holds: Sequence[bool | None]) -> Word:
    """Of tests that hold (True), fail (False) or say nothing (None); where none holds, half must fail to disagree."""
    told = [one for one in holds if one is not None]
    if not told:
        return "undecided"
    if all(told):
        return "agrees" if len(told) == len(holds) else "agrees in part"
    if any(told):
        return "agrees in part"
    return "disagrees" if 2 * len(told) >= len(holds) else "undecided"


# ---- where sinks are and what they do, from traces with nothing masked ----


def _traced(tables: Tables, arm: bool) -> list[Dynamics]:
    rows = [row for row in tables.dynamics if row.condition == "none" and row.intervals]
    return [row for row in rows if (row.columns is not None) == arm]


def _values(rows: Sequence[Dynamics], name: str, label: str) -> list[Value]:
    """One figure of each model that has it."""
    found = [(row, row.intervals[name]) for row in rows if row.intervals and name in row.intervals]
    return [Value(f"{row.model}: {label}", one.value, one.low, one.high, row.generations) for row, one in found]


def _above(found: Value, limit: float) -> bool | None:
    """On which side of the limit the whole interval lies; a few generations say nothing, however narrow it is."""
    if found.n < GENERATIONS:
        return None
    return True if found.low > limit else False if found.high < limit else None


def _below(found: Value, limit: float) -> bool | None:
    held = _above(found, limit)
    return None if held is None else not held


def _apart(one: Value, other: Value) -> bool | None:
    """Is one above the other, by whole intervals?"""
    if one.n < GENERATIONS:
        return None
    return True if one.low > other.high else False if one.high < other.low else None


def _least(found: Sequence[Value]) -> Value:
    return min(found, key=lambda one: one.value)


def _most(found: Sequence[Value]) -> Value:
    return max(found, key=lambda one: one.value)


def _model(found: Value) -> str:
    return found.label.split(":")[0]


def _exist(tables: Tables) -> Claim | None:
    found = _values(_traced(tables, arm=False), "with_sink", "heads with a sink")
    if not found:
        return None
    lowest = _least(found)
    return Claim(
        "sinks_exist", "Sinks exist in every diffusion model.", agreement([_above(one, FEW_HEADS) for one in found]),
        figure(f"≥ {share(lowest)} of heads"),
        f"A model has sinks where more than {100 * FEW_HEADS:.0f} % of its heads have one at some step; {len(found)} diffusion "
        f"models were traced; {_model(lowest)} has the fewest.", "none", found,
    )  # fmt: skip


def _move(tables: Tables) -> Claim | None:
    dlms, arms = _traced(tables, arm=False), _traced(tables, arm=True)
    moving, static = _values(dlms, "static", "static heads"), _values(arms, "static", "static heads, columns so far")
    first = _values(arms, "key_0", "attention on key 0")
    if not moving or not static:
        return None
    moves = [_below(one, MAJORITY) for one in moving]
    stands = [_above(one, MAJORITY) for one in static]
    start = [_above(one, STRONG) for one in first]
    return Claim(
        "moving", "Sinks of diffusion models move; those of the autoregressive model stand still at the start.",
        agreement([*moves, *stands, *start]),
        figure(f"static: DLMs ≤ {share(_most(moving))}, ARMs ≥ {share(_least(static))}"),
        f"Heads with sinks that are static: fewer than half in {sum(map(bool, moves))} of {len(moves)} diffusion models, more "
        f"than half in {sum(map(bool, stands))} of {len(stands)} ARMs (columns so far); key 0 draws more than {STRONG} of the "
        f"attention in {sum(map(bool, start))} of {len(start)}.", "none", [*moving, *static, *first],
    )  # fmt: skip


def _structural(tables: Tables) -> Claim | None:
    rows = [row for row in _traced(tables, arm=False) if row.intervals and "structural" in row.intervals]  # have sinks
    found = _values(rows, "structural", "sinks on structural tokens")
    base = _values(rows, "structural_base", "structural tokens on the canvas")
    if not found:
        return None
    enriched = [_apart(a, b) for a, b in zip(found, base, strict=True)]
    lowest, highest = _least(found), _most(found)
    both = share(lowest) if lowest is highest else f"{share(lowest)} to {share(highest)}"
    canvas = f"{'–'.join(dict.fromkeys(f'{100 * one.value:.0f}' for one in (_least(base), _most(base))))} %"
    return Claim(
        "structural", "Sinks are structural tokens: punctuation, newline, mask, template.",
        agreement([*(_above(one, MAJORITY) for one in found), *enriched]), figure(f"{both}; {canvas} of the canvas"),
        f"More than half of the sinks are structural tokens in {sum(one.low > MAJORITY for one in found)} of {len(found)} "
        f"diffusion models, and more than of the canvas, of which {canvas} is structural, in {sum(map(bool, enriched))}.",
        "none", [*found, *base],
    )  # fmt: skip


def _threshold(tables: Tables) -> Claim | None:
    generations = {row.model: row.generations for row in _traced(tables, arm=False)}
    found = [
        Value(f"{row.model}: {row.unit}", row.non_sinks, row.low, row.high, generations[row.model])
        for row in tables.curves
        if row.model in generations and row.condition == "none" and row.epsilon == EPSILON
        and row.unit in ("sum", "percent") and row.low is not None and row.high is not None
    ]  # fmt: skip
    if not found:
        return None
    lowest = _least(found)
    return Claim(
        "threshold", "An epsilon of 3 leaves at least 96 % of the tokens out.",
        agreement([_above(one, LEFT_OUT) for one in found]),
        figure(f"≥ {share(lowest, 1)} in units of {lowest.label.split(': ')[1]}"),
        "The paper does not say in which unit its epsilon is: column sums and percent are the two readings that fit its "
        f"figures, and both are tested in every diffusion model; {_model(lowest)} leaves the least out.", "none", found,
    )  # fmt: skip


def _deeper(tables: Tables) -> Claim | None:
    dlms = _traced(tables, arm=False)
    fewer = _values(dlms, "deep_sinks", "sinks per step and head, deep − shallow")
    stronger = _values(dlms, "deep_strength", "strength, deep − shallow")
    if not fewer or not stronger:
        return None
    return Claim(
        "deeper", "Deeper layers have fewer and stronger sinks.",
        agreement([_below(one, 0.0) for one in fewer] + [_above(one, 0.0) for one in stronger]),
        figure(f"number {span(_most(fewer))}, strength {span(_least(stronger))}"),
        f"Last third of the layers less the first third: fewer sinks per step in {sum(one.high < 0 for one in fewer)}, "
        f"stronger ones in {sum(one.low > 0 for one in stronger)} of {len(fewer)} diffusion models; shown is the model that "
        "fits least.", "none", [*fewer, *stronger],
    )  # fmt: skip


def _confidence(tables: Tables) -> Claim | None:
    rows = [row for row in tables.mechanism if row.confidence_gap_beyond_random is not None]
    if not rows:
        return None

    def judged(test: Callable[[Mechanism], bool | None]) -> list[bool | None]:
        return [held if (held := test(row)) or row.problems >= PROBLEMS else None for row in rows]

    sure, late = judged(less_sure), judged(later)
    told = [one for one in late if one is not None]
    when = f"later in {sum(told)} of {len(told)}" if told else "too few for later"
    free = any(row.free_delay_sinks_gap for row in rows)
    return Claim(
        "confidence", "Confidence falls where tokens depended on the sink, so they are committed later.",
        agreement([*sure, *late]), figure(f"less sure in {sum(map(bool, sure))} of {len(rows)}, {when}"),
        f"Of {len(rows)} tests (model and K), confidence falls more in the half that looked at the masked sinks in "
        f"{sum(map(bool, sure))} and that half is committed later in {sum(map(bool, late))} of the {len(told)} that can tell "
        f"({'with commits by a threshold' if free else 'under one commit per step'}), each beyond as many random keys (95 % "
        "intervals).",
        f"mask sinks K={rows[0].k} clean by all rows", [value for row in rows for value in _gap_values(row)],
    )  # fmt: skip


def _gap_values(row: Mechanism) -> Iterator[Value]:
    for name, label, n in (
        ("confidence_gap_beyond_random", f"confidence beyond random ({row.unit})", row.problems),
        ("free_delay_gap_beyond_random", "delay beyond random (steps)", row.free_problems or 0),
        ("free_delay_beyond_random", "delay of all positions beyond random (steps)", row.free_problems or 0),
    ):
        if (found := getattr(row, name)) is not None:
            yield Value(f"{row.model} K={row.k}: {label}", found.value, found.low, found.high, n)


# ---- what masking costs ----


@dataclass(frozen=True)
class Costs:
    """What masking each key costs some models: in right answers, and in the likelihood of true answers."""

    answers: Mapping[vocabulary.Key, Sequence[PooledCell]]
    scored: Mapping[vocabulary.Key, Sequence[LikelihoodChange]]

    def rows(self, key: str, match: Match | None = None) -> list[Row]:
        return [*self.answers.get((key, match), ()), *self.scored.get((key, match), ())]


def _costs_of_dlms(tables: Tables) -> Costs:
    answers: dict[vocabulary.Key, list[PooledCell]] = {}
    scored: dict[vocabulary.Key, list[LikelihoodChange]] = {}
    for row in tables.pooled:
        if not row.causal and row.able is not None and (key := vocabulary.masked_key(row.condition)):
            answers.setdefault(key, []).append(solvable(row))
    for text in tables.likelihood:
        if not text.causal and text.of == "answers" and (key := vocabulary.masked_key(text.condition)):
            scored.setdefault(key, []).append(text)
    return Costs(answers, scored)


def _value(name: str, row: Row, control: str = "") -> Value:
    if isinstance(row, LikelihoodChange):
        of_answers = " of true answers" if row.causal and row.of == "answers" else ""
        name += f" (nats per token{of_answers})"
    return Value(f"{row.model}: {name}{control}", row.difference, row.difference_low, row.difference_high, row.n)


def _one_sink_of_a_dlm(tables: Tables, margin: float) -> Claim | None:
    """Structural keys, strong sinks and any top key, one per head, each with its random controls.

    By right answers where a model writes them, and by the likelihood of true answers where that was measured instead.
    """
    costs = _costs_of_dlms(tables)
    judged = {key: rows for key in JUDGED if (rows := costs.rows(key))}
    if not judged:
        return None
    said = {key: [_said(row, margin) for row in rows] for key, rows in judged.items()}
    values = [_value(name, row) for kind in (costs.answers, costs.scored)
              for key, name in KEYS.items() for row in kind.get((key, None), ())]  # fmt: skip
    for key, name in KEYS.items():
        for match in MATCHES:
            values += [_value(name, row, f", {match}-matched random") for row in costs.rows(key, match)]
    told = ", ".join(
        f"{KEYS[key]} (at most {100 * max(row.mass_share or 0.0 for row in rows):.1f} % of attention taken): "
        f"{_counted(said[key])}"
        for key, rows in judged.items()
    )
    every = [row for rows in judged.values() for row in rows]
    answered = [row for row in every if isinstance(row, PooledCell)]
    return Claim(
        "one_sink", "Masking one sink costs a diffusion model almost nothing.",
        agreement([HOLDS[one] for words in said.values() for one in words if one != "no test"]),
        figure(_worst(judged)),
        f"One key per head masked, against a margin of {100 * margin:g} points (of right answers, or {100 * margin:g} % of the "
        f"probability per token), over all diffusion models: {told}. {_beyond_random(answered)}{_random_nats(costs)}",
        (answered or every)[0].label, values,
    )  # fmt: skip


def _said(row: Row, margin: float) -> str:
    """On which side of the margin; taking hardly any attention is no test of what that attention is for.

    The margin is a share of right answers, and of likelihood the same share of the probability per token.
    """
    if isinstance(row, PooledCell):
        said = decide(row, margin).said
    else:
        limit = -math.log1p(-margin)
        said = "dependent" if row.difference_high < -limit else "robust" if row.difference_low > -limit else "undecided"
    return "no test" if said != "dependent" and (row.mass_share or 0.0) < LEAST_TAKEN else said


def _counted(said: Sequence[str]) -> str:
    """robust, or 2 dependent and 1 undecided"""
    words = list(dict.fromkeys(said))
    return words[0] if len(words) == 1 else " and ".join(f"{list(said).count(word)} {word}" for word in words)


def _worst(judged: Mapping[str, Sequence[Row]]) -> str:
    """The largest loss of right answers, and beside it the largest in nats of the models that were only scored."""
    answers = {key: [row for row in rows if isinstance(row, PooledCell)] for key, rows in judged.items()}
    worst = {key: loss(min(rows, key=lambda row: row.difference)) for key, rows in answers.items() if rows}
    shown = [key for key in worst if key != "strong sink"] or list(worst)
    scored = [row for rows in judged.values() for row in rows if isinstance(row, LikelihoodChange)]
    if not scored:
        return "; ".join(f"{JUDGED[key]} {worst[key]}" for key in shown) + " points"
    row = min(scored, key=lambda row: row.difference)
    points = f"{worst[shown[0]]} points; " if shown else ""  # a line has room for two figures
    return f"{points}{row.model} {nats(row)} nats"


def _beyond_random(rows: Sequence[PooledCell]) -> str:
    """Whether the loss is one of sinks at all: random keys of the same mass may cost as much."""
    with_control = [row for row in rows if "mass" in row.controls]
    if not with_control:
        return "No mass-matched random control was run."
    row = min(with_control, key=lambda row: row.difference)
    control = row.controls["mass"]
    fair = vocabulary.comparable(row.mass_share or 0.0, control.mass_share or 0.0)
    missed = "" if fair else f" (they took {percent(control.mass_share)}, the sinks {percent(row.mass_share)})"
    return (
        f"Where most is lost ({row.model}), sinks cost {loss(control)} points beyond mass-matched random keys{missed}."
    )


def _random_nats(costs: Costs) -> str:
    """The same of models that were only scored."""
    return "".join(
        f" In {row.model} the top key costs {row.difference:+.2f} nats per token at {percent(row.mass_share)} of the "
        f"attention, random keys up to its mass {other.difference:+.2f} at {percent(other.mass_share)}."
        for row in costs.scored.get(("top key", None), ())
        for other in costs.scored.get(("top key", "mass"), ())
        if other.model == row.model
    )


def _sink_of_an_arm(tables: Tables) -> Claim | None:
    """Fatal: half of the right answers are lost, or half of the probability per token of held-out text or true answers."""
    base = {
        row.model: solvable(row).accuracy for row in tables.pooled if row.causal and row.condition["name"] == "none"
    }
    answers = [row for row in tables.pooled if row.causal and row.able is not None and _arm_test(row)]
    scored = [row for row in tables.likelihood if row.causal and _arm_test(row)]
    if not answers and not scored:
        return None
    limits = [-base[row.model] / 2 for row in answers] + [-HALF_PROBABILITY] * len(scored)
    every: list[Row] = [*map(solvable, answers), *scored]
    holds = [
        True if row.difference_high < limit else False if row.difference_low > limit else None
        for row, limit in zip(every, limits, strict=True)
    ]
    values = [_value(_arm_test(row), row) for row in every]
    shown = [f"{loss(_least(values[: len(answers)]))} points"] if answers else []
    if scored:
        worst = _least(values[len(answers) :])
        shown.append(f"{worst.value:+.1f} [{worst.low:+.1f}, {worst.high:+.1f}] nats")
    return Claim(
        "arm_sink", "Masking its sink is fatal for the autoregressive model.", agreement(holds), figure("; ".join(shown)),
        f"{sum(map(bool, holds))} of {len(holds)} tests cost half of the right answers, or of the probability per token of text "
        "or of true answers: the top key of the last row, the top key of the columns, and position 0, each hidden after a "
        "clean prefill.",
        "mask sinks K=1 clean by last row", values,
    )  # fmt: skip


def _arm_test(row: Row) -> str:
    """What the row masks of an ARM, in the claim's words; empty for what is no test of it."""
    key = vocabulary.masked_key(row.condition)
    return ARM_KEYS.get(key[0], "") if key is not None and key[1] is None else ""
