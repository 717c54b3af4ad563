"""Claims, judged: one row per claim, model, condition and definition of a sink.

Every row is one test with one statistic, one limit and one rule: the whole 95 % interval lies on the side that the claim
says (supports), on the other (contradicts), or on both (undecided). Where the model lacks what the claim is about, or the
statistic cannot test it, there is no test, and the row says why. Nothing is pooled over models or definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sinkscope import paper
from sinkscope.results.claim_tests import TESTS, Test
from sinkscope.results.rows import Claim, Tables, Verdict
from sinkscope.results.series import ModelRows, first_point
from sinkscope.statistics import adjusted


@dataclass(frozen=True)
class Statement:
    """A claim in a few words, as the matrix has it, and as a sentence; whether the paper makes it."""

    short: str
    sentence: str
    of_the_paper: bool = True


# In the order of the matrix.
STATEMENTS = {
    "sinks_exist": Statement("has sinks", "It has sinks."),
    "sinks_move": Statement("sinks move", "Its sinks move."),
    "sinks_stand": Statement("sinks stay in place", "Its sinks stay in place."),
    "sink_at_start": Statement("sink at position 0", "Its sink is position 0."),
    "strong_sink": Statement("works w/o strong sinks", "Masking the strong sinks of each head hardly lowers accuracy."),
    "one_sink": Statement("works w/o main keys", "Masking the most-attended key of each head hardly lowers accuracy."),
    "arm_sink": Statement("needs its sink", "Masking its sink is fatal."),
    "structural": Statement("sinks are structural", "Its sinks are structural tokens more often than tokens are."),
    "threshold_sum": Statement(
        "96 % no sink (ε=3 sum)", "An epsilon of 3 leaves 96 % of its tokens out, counted in column sums."
    ),
    "threshold_percent": Statement(
        "96 % no sink (ε=3 %)", "An epsilon of 3 leaves 96 % of its tokens out, counted in percent."
    ),
    "deeper_fewer": Statement("fewer when deeper", "Its deeper layers have fewer sinks."),
    "deeper_stronger": Statement("stronger when deeper", "Its deeper layers have stronger sinks."),
    "confidence": Statement("confidence falls", "Masking sinks lowers its confidence where they were attended to."),
    "later": Statement("commits come later", "Tokens that attended to masked sinks are committed later."),
    "beyond_control": Statement(
        "more than its control", "Masking its sink lowers accuracy more than masking random keys.", False
    ),
    "tasks_differ": Statement("tasks differ", "Masking lowers accuracy more in some tasks than in others.", False),
    "weakened": Statement("sinks weakened", "The condition weakens its sinks.", False),
    "held": Statement("sinks held", "The condition holds its sinks in place.", False),
    "free_of_cost": Statement("at no cost", "The condition hardly lowers accuracy.", False),
    "recovers": Statement("recovers from a cut", "After a cut in the middle of the prompt it has sinks again.", False),
    "settings_differ": Statement(
        "worse setting", "This decode setting has a lower accuracy than the first one.", False
    ),
}


def judge_claims(tables: Tables, margin: float) -> list[Claim]:
    """Every claim that the run can test, model by model; margin: in shares; of a sweep the first point is judged."""
    here = first_point(tables)
    rows: list[Any] = [*here.dynamics, *here.cells, *here.likelihood]
    models = dict.fromkeys(row.model for row in rows)
    found: list[Claim] = []
    for model in models:
        own = replace(here.of(model), settings=tables.of(model).settings)
        found += _of_model(ModelRows(model, own, margin))
    return _with_correction(found)


def _of_model(of: ModelRows) -> Iterator[Claim]:
    order = list(STATEMENTS)
    tests = [test for function in TESTS for test in function(of)]
    for test in sorted(tests, key=lambda one: order.index(one.claim)):
        yield _claim(of.model, test)


def _claim(model: str, test: Test) -> Claim:
    reason = test.rule
    if test.missing:
        reason += f" No test: {test.missing}."
    elif test.verdict == "undecided":
        more = f"; about n = {test.needed} would decide" if test.needed else ""
        reason += f" The interval contains the limit{more}."
    return Claim(
        name=test.claim, claim=STATEMENTS[test.claim].sentence, paper_model=paper.STANDS_FOR.get(model), model=model,
        condition=test.condition, verdict=test.verdict, estimate=test.found.value, low=test.found.low, high=test.found.high,
        unit=test.unit, n=test.n, dose=test.dose, control=test.control, because=reason.strip(), limit=test.limit,
        needed=test.needed, definition=test.definition, p=test.p,
    )  # fmt: skip


def _with_correction(claims: Sequence[Claim]) -> list[Claim]:
    """The p of every test, corrected over all claims of the run."""
    corrected = adjusted({place: row.p for place, row in enumerate(claims) if row.p is not None})
    return [replace(row, p_holm=corrected.get(place)) for place, row in enumerate(claims)]


def verdicts_of(claims: Sequence[Claim]) -> list[Verdict]:
    """The claims in short: of a claim under several conditions or definitions, the first."""
    found: dict[tuple[str, str], Verdict] = {}
    for row in claims:
        found.setdefault((row.model, row.name), Verdict(row.model, row.name, row.verdict, row.because))
    return list(found.values())
