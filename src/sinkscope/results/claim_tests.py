"""One function per group of claims: which statistic of a model is held against which limit.

A claim names the condition that it is about, and uses that row alone: what else is in the study changes nothing. Where the
row is missing there is no test, and no row. A claim that depends on how a sink is defined has one test per definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sinkscope import paper
from sinkscope.conditions import Condition
from sinkscope.results import series
from sinkscope.results.accuracy import WEAK
from sinkscope.results.rows import (
    Cell,
    ClaimControl,
    ClaimVerdict,
    Dynamics,
    Interval,
    LikelihoodChange,
    Mechanism,
)  # fmt: skip
from sinkscope.results.series import SOLVED, ModelRows
from sinkscope.statistics import interval_p, problems_needed

LEFT_OUT = 0.96  # share of the tokens that the paper's epsilon leaves out
EPSILON = 3.0
FATAL = 0.5  # share of the right answers, or of the probability per token
DOSE = 0.02  # share of the attention that must be removed before anything is said about what removing it does
GENERATIONS = 20  # traced generations below which nothing is decided
HEADERS = 4  # chat headers below which one header may be all that the test sees
TEXTS = 3
PROBLEMS = 20
FEW_HEADS = 0.2  # share of heads with sinks below which there are few
MAJORITY = 0.5  # share of heads
STRONG = 0.3  # share of the attention on position 0, as Gu et al. count a sink
LESS = 0.8  # of the attention on sinks, below which they are weaker
STILLER = 0.5  # of the share of heads whose sink moves, below which sinks are held
RECOVERED = 0.5  # of the attention on sinks before the cut


@dataclass(frozen=True)
class Test:
    """A statistic with its interval against a limit, in the unit that is printed."""

    claim: str
    condition: str
    found: Interval
    limit: float
    above: bool  # the claim says that the statistic is above the limit
    unit: str
    n: int
    rule: str = ""  # what is tested, as a sentence
    dose: float | None = None  # share of the attention that the condition removed
    control: ClaimControl | None = None
    missing: str = ""  # why it is no test; empty where it is one
    needed: int | None = None  # problems that would decide it, where that can be said
    definition: str = ""  # of a sink, where the claim depends on it

    @property
    def verdict(self) -> ClaimVerdict:
        if self.missing:
            return "no test"
        if self.found.low > self.limit:
            return "supports" if self.above else "contradicts"
        if self.found.high < self.limit:
            return "contradicts" if self.above else "supports"
        return "undecided"

    @property
    def p(self) -> float | None:
        """Of a value as far from the limit, two-sided, as the interval has it."""
        return None if self.missing else interval_p(self.found.value, self.found.low, self.found.high, self.limit)


Tests = Iterator[Test]
TESTS: list[Callable[[ModelRows], Tests]] = []


def tests(function: Callable[[ModelRows], Tests]) -> Callable[[ModelRows], Tests]:
    """Make a function one of those that every model is tested by."""
    TESTS.append(function)
    return function


def stands_still(of: ModelRows) -> bool:
    """Whether the paper's claim about this kind of model is that its sinks stand still."""
    stands_for = paper.STANDS_FOR.get(of.model)
    return stands_for in paper.STATIC or (stands_for is None and of.causal)


# ---- where sinks are and whether they move


def definition_of(row: Dynamics) -> str:
    """The definition of a sink that a row was made with, such as threshold 3 (uniform)."""
    epsilon = "" if row.epsilon is None else f" {row.epsilon:g}"
    unit = "" if row.unit is None else f" ({row.unit})"
    return f"{row.rule}{epsilon}{unit}"


def trace_test(
    row: Dynamics,
    claim: str,
    found: Interval | None,
    limit: float,
    above: bool,
    unit: str,
    rule: str,
    scale: float = 100,
) -> Tests:
    """A mean over generations against a limit."""
    if found is None:
        return
    yield Test(
        claim, row.condition, found.times(scale), scale * limit, above, unit, row.generations, rule,
        missing=_too_few(row.generations, GENERATIONS, "generations were traced"), definition=definition_of(row),
    )  # fmt: skip


def _too_few(count: int, least: int, what: str) -> str:
    """Why so few are no test; empty where they are enough."""
    return "" if count >= least else f"{count} {what}; at least {least} are needed"


def need_sinks(row: Dynamics, found: Tests) -> Tests:
    """The same tests, and no test where hardly any head has a sink."""
    having = (row.intervals or {}).get("with_sink")
    for test in found:
        rare = having is not None and having.high < FEW_HEADS and not test.missing
        share = 0.0 if having is None else 100 * having.value
        yield replace(test, missing=f"only {share:.0f} % of its heads have a sink") if rare else test


@tests
def test_sinks(of: ModelRows) -> Tests:
    """By every definition of a sink: are there any, do they stay in place."""
    still = stands_still(of)
    for row in of.traced():
        means = row.intervals or {}
        some = f"More than {100 * FEW_HEADS:.0f} % of the heads must have a sink at some denoising step."
        yield from trace_test(row, "sinks_exist", means.get("with_sink"), FEW_HEADS, True, "% of heads", some)
        rule = f"Of the heads with a sink, {'more' if still else 'fewer'} than half must keep it in one place."
        if (relocating := means.get("relocating")) is not None:
            rule += f" The main sink changes place in {100 * relocating.value:.0f} % of them."
        name = "sinks_stand" if still else "sinks_move"
        yield from need_sinks(row, trace_test(row, name, means.get("static"), MAJORITY, still, "% of heads", rule))


@tests
def test_places(of: ModelRows) -> Tests:
    """By the first definition of the study: position 0, layers, kinds of token."""
    for row in of.traced()[:1]:
        means, third = row.intervals or {}, "The last third of the layers less the first third must be"
        if of.causal:
            rule = f"Position 0 must receive more than {100 * STRONG:.0f} % of the attention."
            yield from trace_test(row, "sink_at_start", means.get("key_0"), STRONG, True, "% of attention", rule)
        else:
            deep = trace_test(
                row, "deeper_fewer", means.get("deep_sinks"), 0.0, False, "sinks per step and head", f"{third} below 0.", 1
            )  # fmt: skip
            yield from need_sinks(row, deep)
            strength = trace_test(
                row, "deeper_stronger", means.get("deep_strength"), 0.0, True, "times the uniform share", f"{third} above 0.", 1
            )  # fmt: skip
            yield from need_sinks(row, strength)
        yield from need_sinks(row, _structural(row))


def _structural(row: Dynamics) -> Tests:
    """Share of structural tokens among the sinks less their share of the canvas, mask tokens apart."""
    means = row.intervals or {}
    sinks, canvas = means.get("structural"), means.get("structural_base")
    if sinks is None or canvas is None:
        return
    rule = f"Mask tokens apart, {100 * sinks.value:.0f} % of the sinks and {100 * canvas.value:.0f} % of the canvas are structural."
    outer = Interval(sinks.value - canvas.value, sinks.low - canvas.high, sinks.high - canvas.low)
    for test in trace_test(row, "structural", outer, 0.0, True, "points of share", rule):
        few = not test.missing and (row.headers is None or 0 < row.headers < HEADERS)
        seen = "an unknown number of" if row.headers is None else row.headers
        missing = f"the prompts have {seen} chat headers; at least {HEADERS}, or none, are needed"
        yield replace(test, missing=missing) if few else test


@tests
def test_thresholds(of: ModelRows) -> Tests:
    """The share of keys that the paper's epsilon leaves out, in both units that it may have meant."""
    generations = max((row.generations for row in of.traced()), default=0)
    for row in [] if of.causal else of.tables.curves:
        wanted = row.condition == "none" and row.epsilon == EPSILON and row.unit in ("sum", "percent")
        if wanted and row.low is not None and row.high is not None:
            found = Interval(row.non_sinks, row.low, row.high).times(100)
            yield Test(
                f"threshold_{row.unit}", "none", found, 100 * LEFT_OUT, True, "% of keys", generations,
                f"The paper does not name the unit of its epsilon; this is {row.unit}.",
                missing=_too_few(generations, GENERATIONS, "generations were traced"),
            )  # fmt: skip


# ---- what masking changes in the answers


@tests
def test_masking(of: ModelRows) -> Tests:
    """Of a diffusion model: masking the strong sinks, or the most-attended key of each head, changes almost nothing."""
    for name, key in (("strong_sink", "strong sink"), ("one_sink", "top key")) if not of.causal else ():
        if cell := of.cell(key):
            rule = f"Accuracy on {cell.task} may fall by at most {100 * of.margin:g} points."
            yield answers_test(of, name, cell, -of.margin, True, rule)
        elif scored := of.scored(key):
            missing = "the likelihood of true answers does not tell how many of them the model gives"
            yield _likelihood_test(name, scored, True, "Accuracy may fall by little.", missing)


@tests
def test_fatality(of: ModelRows) -> Tests:
    """Of an autoregressive model: masking its sink is fatal; each kind of sink that was masked is a row."""
    for key in ("strong sink", "position 0", "last row's top key", "top key") if of.causal else ():
        if of.untouched is not None and (cell := of.cell(key)):
            rule = f"At least half of the right answers to {cell.task} must be lost."
            yield answers_test(of, "arm_sink", cell, -FATAL * of.untouched.accuracy, False, rule)
        elif scored := of.scored(key):
            yield _likelihood_test("arm_sink", scored, False, "The probability per token must halve.")


@tests
def test_beyond_control(of: ModelRows) -> Tests:
    """Masking a sink changes more than masking random keys in its place; both doses are stated."""
    for key in ("strong sink", "last row's top key", "top key"):
        cell = of.cell(key)
        for match, control in () if cell is None else cell.controls.items():
            assert cell is not None
            removed = "an unknown share" if control.mass_share is None else f"{100 * control.mass_share:.0f} %"
            rule = f"The {match}-matched control removes {removed} of the attention."
            yield Test(
                "beyond_control", cell.label, control.interval.times(100), 0.0, False, "points", cell.n, rule,
                cell.mass_share, definition=f"{match}-matched",
            )  # fmt: skip


def answers_test(of: ModelRows, claim: str, cell: Cell, limit: float, above: bool, rule: str) -> Test:
    """A paired change of accuracy; no test where the condition removes too little attention, or the task is not solved."""
    solved = of.untouched is not None and of.untouched.accuracy >= SOLVED
    missing = "" if solved else "the model does not solve the task with nothing masked"
    dose = cell.mass_share or 0.0
    if not missing and dose < DOSE:
        missing = f"the condition removes {100 * dose:.1f} % of the attention, so there is nothing to lose"
    test = Test(
        claim, cell.label, cell.interval.times(100), 100 * limit, above, "points", cell.n, rule, cell.mass_share,
        _control(of, cell), missing,
    )  # fmt: skip
    needed = problems_needed(cell.lost, cell.won, cell.n, -limit) if test.verdict == "undecided" else None
    return replace(test, needed=needed and max(needed, cell.n + 1))


def _control(of: ModelRows, cell: Cell) -> ClaimControl | None:
    """Random keys in place of the sinks, against nothing masked; the closest in mass that was run."""
    key = series.masked_key(cell.condition)
    control = (of.cell(key[0], "mass") or of.cell(key[0], "count")) if key else None
    if control is None:
        return None
    change = control.interval.times(100)
    return ClaimControl(control.label, change.value, change.low, change.high, control.mass_share)


def _likelihood_test(claim: str, row: LikelihoodChange, above: bool, rule: str, missing: str = "") -> Test:
    """Likelihood can show that masking is fatal; it cannot show that it is harmless: accuracy falls long before."""
    limit = math.log(FATAL)
    if not missing and row.difference_high >= limit:
        missing = "the probability per token does not halve, and accuracy may fall long before it does"
    if not missing and row.n < TEXTS:
        missing = f"{row.n} texts were read"
    unit = "nats per token"
    return Test(claim, row.label, row.interval, limit, above, unit, row.n, rule, row.mass_share, missing=missing)


@tests
def test_tasks(of: ModelRows) -> Tests:
    """The task that loses most under one masked key loses more than the one that loses least."""
    cells = [row for row in of.tables.cells if series.masked_key(row.condition) == ("top key", None)]
    solved = {row.task for row in of.tables.cells if row.condition["name"] == "none" and row.accuracy >= WEAK}
    rows = [row for row in cells if row.task in solved and row.n >= PROBLEMS]
    if len(rows) < 2 or len({row.task for row in cells}) < 3:
        return
    most, least = min(rows, key=lambda row: row.difference), max(rows, key=lambda row: row.difference)
    gap = most.difference - least.difference
    # The half-width of a difference is the square root of the sum of the squared half-widths.
    below = math.hypot(most.difference - most.difference_low, least.difference_high - least.difference)
    above = math.hypot(most.difference_high - most.difference, least.difference - least.difference_low)
    rule = f"{most.task} loses most and {least.task} least; the two were chosen after the fact."
    yield Test(
        "tasks_differ", most.label, Interval(gap, gap - below, gap + above).times(100), 0.0, False, "points",
        min(most.n, least.n), rule, most.mass_share,
    )  # fmt: skip


# ---- the mechanism


@tests
def test_mechanism(of: ModelRows) -> Tests:
    """Confidence falls, and commits come later, where tokens depended on the masked keys."""
    for row in of.tables.mechanism:
        few = _too_few(row.problems, PROBLEMS, "problems were decoded")
        yield from _confidence(row, few)
        late, count = row.free_delay_gap_beyond_random, row.free_problems or 0
        if late is not None:
            yield Test(
                "later", _mechanism_label(row), late, 0.0, True, "steps", count,
                "With commits by a threshold, the half that attended to the masked sinks must be committed later, beyond as "
                "many random keys.", missing=few or ("" if count >= PROBLEMS else f"{count} problems left anything open"),
            )  # fmt: skip


def _confidence(row: Mechanism, few: str) -> Tests:
    gap, scale = row.confidence_gap_beyond_random, 1 if row.unit == "nats" else 100
    if gap is not None:
        yield Test(
            "confidence", _mechanism_label(row), gap.times(scale), 0.0, False, row.unit,
            row.problems,
            "Confidence must fall more in the half that attended to the masked sinks, beyond as many random keys.",
            missing=few,
        )  # fmt: skip


def _mechanism_label(row: Mechanism) -> str:
    return f"mask sinks K={row.k}"


# ---- conditions that weaken or hold sinks, cuts, sweeps


@tests
def test_aims(of: ModelRows) -> Tests:
    """Of conditions that are meant to weaken or to hold sinks: whether they did, and whether accuracy fell."""
    before = next(iter(of.traced()), None)
    for cell in of.tables.pooled:
        aim = Condition.from_dict(cell.condition).aim
        if aim is None or before is None:
            continue
        for row in of.traced(cell.label)[:1]:
            name, statistic, least = (
                ("weakened", "absorption", LESS) if aim == "weaken" else ("held", "moving", STILLER)
            )
            yield from _ratio_test(name, statistic, before, row, least, False)
        rule = f"Accuracy over all tasks may fall by at most {100 * of.margin:g} points."
        found, limit = cell.interval.times(100), -100 * of.margin
        yield Test("free_of_cost", cell.label, found, limit, True, "points", cell.n, rule, cell.mass_share)


@tests
def test_recovery(of: ModelRows) -> Tests:
    """After a cut in the middle of the prompt, attention comes back to sinks."""
    before = next(iter(of.traced()), None)
    cuts = {cell.label: cell.condition for cell in of.tables.pooled if cell.condition["name"] == "cut"}
    for label, condition in cuts.items() if before is not None else ():
        inner = 0 < float(condition.get("start") or 0) < float(condition.get("stop") or 0) < 1
        for row in of.traced(label)[:1] if inner else []:
            assert before is not None
            yield from _ratio_test("recovers", "absorption", before, row, RECOVERED, True)


def _ratio_test(claim: str, statistic: str, before: Dynamics, after: Dynamics, limit: float, above: bool) -> Tests:
    """A share of what it was with nothing changed; the outer ends of both intervals."""
    was, now = ((row.intervals or {}).get(statistic) for row in (before, after))
    if was is None or now is None or was.low <= 0:
        return
    ratio = Interval(now.value / was.value, now.low / was.high, now.high / was.low)
    what = "The attention on sinks" if statistic == "absorption" else "The share of heads whose sink moves"
    side = "at least" if above else "less than"
    rule = f"{what} must be {side} {100 * limit:.0f} % of what it is with nothing changed."
    yield from trace_test(after, claim, ratio, limit, above, "% of before", rule)


@tests
def test_settings(of: ModelRows) -> Tests:
    """A point of a decode sweep has a lower accuracy than the first one, over the tasks that the model can do."""
    for row in of.tables.settings:
        if row.able is not None and row.able.n:
            rule = f"Accuracy must be below that at {row.against}."
            yield Test(
                "settings_differ", row.setting, row.able.interval.times(100), 0.0, False, "points", row.able.n, rule
            )
