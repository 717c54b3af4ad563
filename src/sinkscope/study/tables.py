"""Every table of a run as text of 80 columns: Tables 1 and 2 beside the paper's values, dynamics, verdicts in sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from sinkscope import paper
from sinkscope.statistics import CORRECTION
from sinkscope.study import matrix
from sinkscope.study.analysis.wording import cut, nats, rule
from sinkscope.study.results import Cell, Claim, Curve, Dynamics, LikelihoodChange, Results, TokenShare, Verdict
from sinkscope.study.vocabulary import is_untouched, series, short_names

WIDTH = 80
ACROSS = 3  # columns of K side by side
COLUMN = 15  # signs, accuracy and interval


def tables(results: Results) -> str:
    """Every table; parts for which there is nothing are left out."""
    made = (
        table_1(results.cells), likelihood_table(results.likelihood), table_2(results.tokens, results.dynamics),
        dynamics_table(results.dynamics), curve_table(results.curves), claim_lines(results.claims or []),
        verdict_lines(results.verdicts),
    )  # fmt: skip
    return "\n\n".join(part for part in map("\n".join, made) if part) + "\n"


def table_1(cells: Sequence[Cell]) -> Iterator[str]:
    """Accuracy with its 95 % interval, one block per model and task, one column per K."""
    if not cells:
        return
    yield "Table 1. Accuracy in % [95 % interval]; * differs from nothing masked, + from as"
    yield f"many random keys masked (exact McNemar, 5 %; {CORRECTION} over K, and over all primary"
    yield "comparisons for those). …/%: points of accuracy per percent of attention taken."
    for model, setting, task in dict.fromkeys((cell.model, cell.setting, cell.task) for cell in cells):
        mine = [cell for cell in cells if (cell.model, cell.setting, cell.task) == (model, setting, task)]
        yield ""
        yield from _block(mine, " · ".join(part for part in (model, task, setting) if part))


def _block(cells: Sequence[Cell], title: str) -> Iterator[str]:
    none = next(cell for cell in cells if cell.condition["name"] == "none")
    ks = sorted({cell.condition["k"] for cell in cells if cell.condition["k"]})
    start, plain = f"{title} (n = {none.n})", f"none masked: {_accuracy(none)}"
    yield from [f"{start}   {plain}"] if len(start) + len(plain) + 3 <= WIDTH else [start, f"  {plain}"]
    for first in range(0, len(ks), ACROSS):
        yield from _masked(cells, none, ks[first : first + ACROSS])
    other = {cell.label: cell for cell in cells if not cell.condition["k"] and not is_untouched(cell.condition)}
    names = short_names({label: cell.condition for label, cell in other.items()}, none.causal)
    for label, cell in other.items():
        line = f"  {names[label]:<44}{_accuracy(cell):>15}   {100 * cell.difference:+.1f}  {_per_percent(cell)}"
        yield line.rstrip()


def _masked(cells: Sequence[Cell], none: Cell, ks: list[int]) -> Iterator[str]:
    """A line a series of conditions, a column a K."""
    yield f"{'':26}" + "".join(f"{f'K={k}':>{COLUMN}}" for k in ks)
    for name, row in _series(cells).items():
        if any(k in row for k in ks):
            line = "".join(f"{_accuracy(row[k]) if k in row else '':>{COLUMN}}" for k in ks)
            yield from [f"  {name:<24}{line}"] if len(name) <= 24 else [f"  {name}", f"{'':26}{line}"]
            if any(_per_percent(row.get(k)) for k in ks):
                yield (f"{'':26}" + "".join(f"{_per_percent(row.get(k)):>{COLUMN}}" for k in ks)).rstrip()
    told = {k: value for cell in cells if (value := cell.paper) is not None and (k := cell.condition["k"])}
    if none.model in paper.STANDS_FOR and none.paper is not None and any(k in told for k in ks):
        bench = paper.BENCHMARK_NAMES[paper.BENCHMARKS[none.task]]
        line = "".join(f"{f'{100 * told[k]:.0f}' if k in told else '':>{COLUMN}}" for k in ks)
        yield f"  {'paper: ' + paper.STANDS_FOR[none.model]:<24}{line}"
        start = f"(none masked: {100 * none.paper:.0f}; {bench})"
        yield f"{start:>{26 + COLUMN * len(ks)}}"


def _series(cells: Sequence[Cell]) -> dict[str, dict[int, Cell]]:
    """Series of conditions that differ in K alone, by a short name; by the whole one where the short one is not enough."""
    found: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        if cell.condition["k"]:
            whole = series(cell.condition)
            found.setdefault(whole, {})[cell.condition["k"]] = cell
    names = short_names({whole: next(iter(row.values())).condition for whole, row in found.items()}, cells[0].causal)
    return {names[whole]: row for whole, row in found.items()}


def _per_percent(cell: Cell | None) -> str:
    return "" if cell is None or cell.per_percent is None else f"{cell.per_percent:+.2f}/%"


def _accuracy(cell: Cell) -> str:
    p = cell.p_holm if cell.p_primary is None else cell.p_primary
    signs = "*" if cell.condition["name"] != "none" and p < 0.05 else ""
    control = cell.controls.get("count")
    signs += "+" if control and control.p_holm < 0.05 else ""
    return f"{signs}{100 * cell.accuracy:.0f} [{100 * cell.low:.0f}–{100 * cell.high:.0f}]"


def likelihood_table(rows: Sequence[LikelihoodChange]) -> Iterator[str]:
    """What each condition costs, in nats per token, and the share of attention that it takes."""
    for of, told in (("texts", "held-out text"), ("answers", "the true answers")):
        if some := [row for row in rows if row.of == of]:
            yield f"Likelihood of {told}: change in nats per token [95 %], p (Wilcoxon), and"
            yield "the share of attention that was taken."
            yield from _likelihoods(some)


def _likelihoods(rows: Sequence[LikelihoodChange]) -> Iterator[str]:
    names: dict[str, str] = {}
    for row in rows:
        if row.condition["name"] == "none":
            mine = {one.label: one.condition for one in rows if one.model == row.model}
            names = short_names(mine, row.causal, numbered=True)
            size = f"{row.n} {row.of}, {row.tokens} tokens"
            yield f"  {row.model}: {row.value:.2f} nats per token ({size})"
            continue
        mass = f"{100 * row.mass_share:.0f} %" if row.mass_share else ""
        yield f"    {cut(names.get(row.label, row.label), 40):<41}{nats(row):>21}{row.p:>7.3f}{mass:>6}".rstrip()


def table_2(tokens: Sequence[TokenShare], dynamics: Sequence[Dynamics], most: int = 5) -> Iterator[str]:
    """The tokens that are sinks most often, and how much oftener than they stand on the canvas; beside the paper's."""
    tokens = [row for row in tokens if row.condition == "none"]
    if not tokens:
        return
    by = f", {rule(dynamics[0])}" if dynamics else ""
    told = "Table 2. Share of the sinks that a token is [95 %], and how many times its share of the canvas that is; "
    told += f"{tokens[0].generations} generations per model{by}."
    yield from textwrap.wrap(told, WIDTH)
    for model, setting in dict.fromkeys((row.model, row.setting) for row in tokens):
        yield f"  {model}{' · ' + setting if setting else ''}"
        for row in [row for row in tokens if (row.model, row.setting) == (model, setting)][:most]:
            span = f"[{row.low:.3f}, {row.high:.3f}]"
            times = f"{row.enrichment:.1f} ×" if row.enrichment is not None else ""
            yield f"    {cut(row.token, 20):<22}{row.kind:<13}{row.share:.3f}  {span:<17}{times:>8}"
        if theirs := paper.TABLE_2.get(paper.family(model)):
            told = ", ".join(f"{token} {share:.3f}" for token, share in theirs)
            yield from textwrap.wrap(f"paper: {told}", WIDTH, initial_indent="    ", subsequent_indent="      ")


def dynamics_table(rows: Sequence[Dynamics]) -> Iterator[str]:
    if not rows:
        return
    yield f"Dynamics ({rule(rows[0])}). Heads by what their sinks do, in %;"
    yield "life in steps; where sinks stand, in %; heads whose sink goes left/right, in %."
    if any(row.columns for row in rows):
        yield "An ARM's heads are judged by their columns so far, per row that sees the key."
    head = ("static", "moving", "flash", "split", "none", "life", "start", "masks", "◂/▸")
    yield f"  {'':<20}" + "".join(
        f"{name:>{width}}" for name, width in zip(head, (7, 7, 6, 6, 6, 6, 7, 6, 7), strict=True)
    )
    for row in rows:
        name = " · ".join(part for part in (row.model, row.setting, row.condition.removeprefix("none")) if part)
        heads = row.judged
        shares = (getattr(heads, name) for name in ("static", "moving", "flash", "split", "none"))
        counts = "".join(f"{100 * share:>{width}.0f}" for share, width in zip(shares, (7, 7, 6, 6, 6), strict=True))
        life = f"{heads.lifetime:.1f}" if heads.lifetime is not None else "–"
        shown = [row.places[key] for key in ("start", "masked")]
        places = ["–" if share is None else f"{100 * share:.0f}" for share in shown]
        if len(name) > 20:
            yield f"  {name}"
            name = ""
        ways = f"{100 * heads.left:.0f}/{100 * heads.right:.0f}"
        yield f"  {name:<20}{counts}{life:>6}{places[0]:>7}{places[1]:>6}{ways:>7}"


def curve_table(rows: Sequence[Curve]) -> Iterator[str]:
    """Share of non-sinks against epsilon, one line per model and unit."""
    if not rows:
        return
    rows = [row for row in rows if row.condition == "none"]
    epsilons = sorted({row.epsilon for row in rows})
    step = max(1, -(-len(epsilons) // 9))
    shown = epsilons[::step]
    yield "Share of the keys that are no sinks, in %, against epsilon in each unit."
    yield f"  {'':<24}" + "".join(f"{epsilon:>6g}" for epsilon in shown)
    printed = ""
    for model, setting, unit in dict.fromkeys((row.model, row.setting, row.unit) for row in rows):
        found = {row.epsilon: row.non_sinks for row in rows
                 if (row.model, row.setting, row.unit) == (model, setting, unit)}  # fmt: skip
        if setting and setting != printed:
            yield f"  {model} · {setting}"
        printed = setting
        yield f"  {model[:15]:<16}{unit:<8}" + "".join(f"{100 * found[epsilon]:>6.1f}" for epsilon in shown)


def claim_lines(rows: Sequence[Claim]) -> Iterator[str]:
    """Every claim with a count of its cells, then one paragraph per model and condition."""
    if rows:
        yield "The paper's claims, by model and condition."
    for name in matrix.SHORT:
        mine = [row for row in rows if row.name == name]
        if mine:
            yield from textwrap.wrap(
                f"{mine[0].claim[:-1]}: {matrix.counted_cells(mine)}", WIDTH, subsequent_indent="  "
            )
        for row in mine:
            where = "" if row.condition == "none" else f" ({row.condition})"
            dose = "" if row.dose is None else f", {100 * row.dose:.0f} % of the attention taken"
            told = f"{row.model}{where}: {row.verdict}. {matrix.figure(row)}, n = {row.n}{dose}. "
            if row.control:
                told += f"Control: {matrix.control_figure(row)}. "
            yield from textwrap.wrap(told + row.because, WIDTH, initial_indent="    ", subsequent_indent="      ")


def verdict_lines(rows: Sequence[Verdict]) -> Iterator[str]:
    if rows:
        yield "Verdicts (rules: python -m pydoc sinkscope.study.analysis.verdicts)."
    for model in dict.fromkeys(row.model for row in rows):
        yield f"  {model}"
        for row in rows:
            if row.model == model:
                told = f"{row.name.replace('_', ' ')}: {row.value}. {row.because}"
                yield from textwrap.wrap(told, WIDTH, initial_indent="    ", subsequent_indent="      ")
