"""What the paper claims of a model, and what a run says of it: one row per claim, model and condition.

Every row is one test with one statistic, one limit and one rule: the whole 95 % interval lies on the side that the claim
says (supports), on the other (contradicts), or on both (undecided). Where the model lacks what the claim is about, or the
statistic cannot speak to it, there is no test, and the row says why. Nothing is pooled over models, tasks or conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sinkscope import paper
from sinkscope.statistics import problems_needed
from sinkscope.study import vocabulary
from sinkscope.study.analysis.model_rows import SOLVED, ModelRows, first_point
from sinkscope.study.analysis.verdicts import FEW_HEADS, MAJORITY, STRONG
from sinkscope.study.results import Cell, Claim, ClaimControl, ClaimVerdict, LikelihoodChange, Tables

LEFT_OUT = 0.96  # share of the tokens that the paper's epsilon leaves out
EPSILON = 3.0
FATAL = 0.5  # share of the right answers, or of the probability per token
DOSE = 0.02  # share of the attention that must be taken before anything is said about what taking it does
GENERATIONS = 3  # fewer decide nothing
TEXTS = 3
PROBLEMS = 20

# In a few words, as the matrix has them and in its order, and as a sentence.
CLAIMS = {
    "sinks_exist": ("has sinks", "It has sinks."),
    "sinks_move": ("sinks move", "Its sinks move."),
    "sinks_stand": ("sinks stand still", "Its sinks stand still."),
    "sink_at_start": ("sink at the start", "Its sink is the first token."),
    "strong_sink": ("works w/o strong sinks", "Masking the strong sinks of each head costs it almost nothing."),
    "one_sink": ("works w/o its top keys", "Masking the top key of each head costs it almost nothing."),
    "arm_sink": ("needs its sink", "Masking its sink is fatal."),
    "structural": ("sinks are structural", "Its sinks are structural tokens more often than tokens are."),
    "threshold_sum": (
        "96 % no sink (ε=3 sum)",
        "An epsilon of 3 leaves 96 % of its tokens out, counted in column sums.",
    ),
    "threshold_percent": ("96 % no sink (ε=3 %)", "An epsilon of 3 leaves 96 % of its tokens out, counted in percent."),
    "deeper_fewer": ("fewer when deeper", "Its deeper layers have fewer sinks."),
    "deeper_stronger": ("stronger when deeper", "Its deeper layers have stronger sinks."),
    "confidence": ("confidence falls", "Masking sinks lowers its confidence where they were looked at."),
    "later": ("commits come later", "Tokens that looked at masked sinks are committed later."),
}
TEXT = {name: text for name, (_, text) in CLAIMS.items()}


@dataclass(frozen=True)
class Test:
    """A statistic with its interval against a limit, in the unit that is printed."""

    estimate: float
    low: float
    high: float
    limit: float
    above: bool  # the claim says that the statistic is above the limit
    unit: str
    n: int
    because: str
    dose: float | None = None
    control: ClaimControl | None = None
    lacks: str = ""  # why it is no test; empty where it is one
    needed: int | None = None  # problems that would decide it, where that can be said

    @property
    def verdict(self) -> ClaimVerdict:
        if self.lacks:
            return "no test"
        if self.low > self.limit:
            return "supports" if self.above else "contradicts"
        if self.high < self.limit:
            return "contradicts" if self.above else "supports"
        return "undecided"


Tests = Iterator[tuple[str, str, Test]]  # claim, condition, test


def claims(tables: Tables, margin: float) -> list[Claim]:
    """Every claim that the run can speak to, model by model; margin: in shares; of a sweep the first point is judged."""
    here = first_point(tables)
    rows: list[Any] = [*here.dynamics, *here.cells, *here.likelihood]
    models = dict.fromkeys(row.model for row in rows)
    return [row for model in models for row in _of_model(ModelRows(model, here.of(model), margin))]


def _of_model(of: ModelRows) -> Iterator[Claim]:
    stands_for = paper.STANDS_FOR.get(of.model)
    still = stands_for in paper.STATIC or (stands_for is None and of.causal)
    tests = [*traced(of, still), *(fatal(of) if of.causal else masked(of)), *thresholds(of), *mechanism(of)]
    order = list(CLAIMS)
    for name, condition, test in sorted(tests, key=lambda one: order.index(one[0])):
        because = test.because
        if test.lacks:
            because += f" No test: {test.lacks}."
        elif test.verdict == "undecided":
            more = f"; about n = {test.needed} would decide" if test.needed else ""
            because += f" The interval holds the limit{more}."
        yield Claim(
            name=name, claim=TEXT[name], paper_model=stands_for, model=of.model, condition=condition,
            verdict=test.verdict, estimate=test.estimate, low=test.low, high=test.high, unit=test.unit, n=test.n,
            dose=test.dose, control=test.control, because=because, limit=test.limit, needed=test.needed,
        )  # fmt: skip


# ---- from traces ----


def share_test(
    value: float, low: float, high: float, limit: float, above: bool, generations: int, unit: str = "% of heads",
    because: str = "", scale: float = 100,
) -> Test:  # fmt: skip
    """A mean over generations against a limit; a few generations are no test, however narrow their interval."""
    few = generations < GENERATIONS
    lacks = f"{generations} generations were traced, at least {GENERATIONS} are needed" if few else ""
    return Test(scale * value, scale * low, scale * high, scale * limit, above, unit, generations, because, lacks=lacks)


def _with_sinks(of: ModelRows, test: Test) -> Test:
    """The same, and no test where hardly any head has a sink."""
    found = of.interval("with_sink")
    if test.lacks or found is None or found.high >= FEW_HEADS:
        return test
    return replace(test, lacks=f"only {100 * found.value:.0f} % of its heads have a sink")


def traced(of: ModelRows, still: bool) -> Tests:
    """What its sinks are and do: each a mean over generations against a limit."""
    row = of.traced()
    if row is None:
        return
    count, third = row.generations, "Last third of the layers less the first third: it must be"
    moving = f"Of the heads with a sink, {'more' if still else 'fewer'} than half must have one that stands still."
    places = of.interval("relocating")
    if places is not None:  # a sink that only vanishes and comes back does not stand either
        moving += f" The main sink really changes place in {100 * places.value:.0f} % of them."
    some = f"More than {100 * FEW_HEADS:.0f} % of the heads must have a sink at some step."
    start = f"The first key must draw more than {100 * STRONG:.0f} % of the attention."
    # Claim → statistic, limit, whether it must be above that, unit, scale, and the rule.
    means = {
        "sinks_exist": ("with_sink", FEW_HEADS, True, "% of heads", 100, some),
        "sinks_stand" if still else "sinks_move": ("static", MAJORITY, still, "% of heads", 100, moving),
    }
    if of.causal:
        means["sink_at_start"] = ("key_0", STRONG, True, "% of attention", 100, start)
    else:
        means["deeper_fewer"] = ("deep_sinks", 0.0, False, "sinks per step and head", 1, f"{third} below 0.")
        means["deeper_stronger"] = ("deep_strength", 0.0, True, "times the uniform share", 1, f"{third} above 0.")
    for name, (statistic, limit, above, unit, scale, because) in means.items():
        if (found := of.interval(statistic)) is not None:
            test = share_test(found.value, found.low, found.high, limit, above, count, unit, because, scale)
            yield name, "none", test if name in ("sinks_exist", "sink_at_start") else _with_sinks(of, test)
    sinks, canvas = of.interval("structural"), of.interval("structural_base")
    if sinks is not None and canvas is not None:  # compared by the outer ends of both intervals
        shares = f"{100 * sinks.value:.0f} % of the sinks and {100 * canvas.value:.0f} % of the canvas"
        span = sinks.value - canvas.value, sinks.low - canvas.high, sinks.high - canvas.low
        test = share_test(*span, 0.0, True, count, "points of share", f"{shares} are structural tokens.")
        yield "structural", "none", _with_sinks(of, test)


def thresholds(of: ModelRows) -> Tests:
    known = of.traced()
    generations = 0 if known is None else known.generations
    for row in [] if of.causal else of.tables.curves:
        here = row.condition == "none" and row.epsilon == EPSILON and row.unit in ("sum", "percent")
        if here and row.low is not None and row.high is not None:
            because = f"The paper does not name the unit of its epsilon; this row counts in units of {row.unit}."
            span = row.non_sinks, row.low, row.high
            test = share_test(*span, LEFT_OUT, True, generations, "% of keys", because)
            yield f"threshold_{row.unit}", "none", test


# ---- from answers ----


def masked(of: ModelRows) -> Tests:
    """One masked key per head of a diffusion model: the strong sinks, and whatever ranks first."""
    for name, key in (("strong_sink", "strong sink"), ("one_sink", "top key")):
        if cell := of.cell(key):
            because = f"Right answers to {cell.task} may fall by at most {100 * of.margin:g} points."
            yield name, cell.label, _with_sinks(of, _answers(of, cell, -of.margin, True, because))
        elif scored := of.scored(key):
            lacks = "how likely the true answers are does not tell how many of them the model gives"
            yield name, scored.label, _nats(scored, True, "Right answers may fall by little.", lacks)


def fatal(of: ModelRows) -> Tests:
    """The sink of an autoregressive model, masked after the prompt was read."""
    for key in ("position 0", "last row's top key", "top key"):
        if of.untouched is not None and (cell := of.cell(key)):
            because = f"At least half of the right answers to {cell.task} must be lost."
            test = _answers(of, cell, -FATAL * of.untouched.accuracy, False, because)
            yield "arm_sink", cell.label, _with_sinks(of, test)
        elif scored := of.scored(key):
            yield "arm_sink", scored.label, _nats(scored, False, "The probability per token must halve.")


def _answers(of: ModelRows, cell: Cell, limit: float, above: bool, because: str) -> Test:
    solved = of.untouched is not None and of.untouched.accuracy >= SOLVED
    lacks = "" if solved else "the model does not solve the task with nothing masked"
    strong = (of.strong if of.strong is not None else cell.mass_share) or 0.0
    change = cell.difference, cell.difference_low, cell.difference_high
    found = answers_test(*change, limit, above, cell.n, strong, because, lacks)
    needed = problems_needed(cell.lost, cell.won, cell.n, -limit) if found.verdict == "undecided" else None
    return replace(found, dose=cell.mass_share, control=_control(of, cell), needed=needed and max(needed, cell.n + 1))


def answers_test(
    difference: float, low: float, high: float, limit: float, above: bool, n: int, strong: float, because: str = "",
    lacks: str = "",
) -> Test:  # fmt: skip
    """A paired difference of right answers, in shares; no test where strong sinks draw too little attention to be missed."""
    if not lacks and strong < DOSE:
        lacks = f"its strong sinks draw {100 * strong:.1f} % of the attention, so there are none to lose"
    return Test(
        100 * difference, 100 * low, 100 * high, 100 * limit, above, "points", n, because, dose=strong, lacks=lacks
    )


def _control(of: ModelRows, cell: Cell) -> ClaimControl | None:
    """Random keys in place of the sinks, against nothing masked; the closest in mass that was run."""
    key = vocabulary.masked_key(cell.condition)
    found = (of.cell(key[0], "mass") or of.cell(key[0], "count")) if key else None
    if found is None:
        return None
    difference, low, high = found.difference, found.difference_low, found.difference_high
    return ClaimControl(found.label, 100 * difference, 100 * low, 100 * high, found.mass_share)


def _nats(row: LikelihoodChange, above: bool, because: str, lacks: str = "") -> Test:
    """Likelihood can show that masking is fatal; it cannot show that masking is harmless: answers fall long before it does."""
    limit = math.log(FATAL)
    if not lacks and row.difference_high >= limit:
        lacks = "the probability per token does not halve, and answers may be lost long before it does"
    if not lacks and row.n < TEXTS:
        lacks = f"{row.n} texts were read"
    return Test(
        row.difference, row.difference_low, row.difference_high, limit, above, "nats per token", row.n, because,
        dose=row.mass_share, lacks=lacks,
    )  # fmt: skip


def mechanism(of: ModelRows) -> Tests:
    for row in of.tables.mechanism[:1]:
        gap = row.confidence_gap_beyond_random
        if gap is None:
            return
        label = f"mask sinks K={row.k} clean by all rows"
        lacks = (
            "" if row.problems >= PROBLEMS else f"{row.problems} problems were decoded, at least {PROBLEMS} are needed"
        )
        if of.strong is not None and of.strong < DOSE:
            lacks = f"its strong sinks draw {100 * of.strong:.1f} % of the attention, so there are none to lose"
        scale = 1 if row.unit == "nats" else 100
        yield "confidence", label, Test(
            scale * gap.value, scale * gap.low, scale * gap.high, 0.0, False, row.unit, row.problems,
            "Confidence must fall more in the half that looked at the masked sinks, beyond as many random keys.", lacks=lacks,
        )  # fmt: skip
        late, count = row.free_delay_gap_beyond_random, row.free_problems or 0
        if late is not None:
            yield "later", label, Test(
                late.value, late.low, late.high, 0.0, True, "steps", count,
                "With commits by a threshold, the half that looked at the masked sinks must be committed later, beyond as "
                "many random keys.", lacks=lacks or ("" if count >= PROBLEMS else f"{count} problems left anything open"),
            )  # fmt: skip
