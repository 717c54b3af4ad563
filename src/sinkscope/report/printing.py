"""`figures`: all figures of a run's traces, or of one trace, as files for print."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import ReportError
from sinkscope.report import figures as made
from sinkscope.report.sample import model_of, typical_heads
from sinkscope.report.writing import traces_of
from sinkscope.results.rows import read_results
from sinkscope.tracing import Trace

DATED: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}  # no date is kept


def figures(run: Path | str, out: Path | str | None = None, format: str = "pdf", dpi: int = 200) -> list[Path]:
    """Write the figures of a run's traces, or of the file of one trace; each model's first trace stands for it."""
    if format not in DATED:
        raise ReportError(f"Expected the format {', '.join(DATED)}, got {format!r}.")
    run = Path(run)
    folder = Path(out or (run.with_name(f"{run.name}.figures") if run.is_file() else run / "figures"))
    if not run.is_file():
        read_results(run, ReportError)  # a run of table1 says what to do instead
    traces = [trace for _, trace in traces_of(run)]
    if not traces:
        raise ReportError(
            f"Expected a run with traces/*.safetensors to draw, and {run} has none; charts of its results are on its page "
            "(sinkscope report), where each can be downloaded."
        )
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    @made.in_style
    def keep(name: str, drawn: Axes | Figure) -> None:
        figure = drawn if isinstance(drawn, Figure) else drawn.get_figure(root=True)
        assert figure is not None
        written.append(folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.{format}")
        figure.savefig(written[-1], dpi=dpi, metadata=DATED[format])

    firsts: dict[str, Trace] = {}
    for trace in [*(one for one in traces if not one.interventions), *traces]:  # as the models are, before changed ones
        firsts.setdefault(model_of(trace), trace)
    for model, trace in firsts.items():
        keep(f"figure-1-{model}", made.received_map(trace))
        keep(f"figure-3-{model}", made.score_histogram(trace, "uniform" if trace.causal else "sum"))
        kept = next((one for one in traces if model_of(one) == model and one.maps is not None and one.steps > 1), None)
        if kept is not None:
            slot, step = _change(kept)
            keep(f"figure-4-{model}", made.neighbouring_maps(kept, step, slot))
            if kept.mean_scores is not None:
                keep(f"mean-map-{model}", made.mean_maps(kept, *kept.map_heads[slot]))
                keep(f"distance-{model}", made.distance_curve(kept))
        keep(f"figure-5-{model}", made.head_grid(trace))
    keep("figure-7", made.sink_paths(list(firsts.values())))
    keep("figure-10", made.epsilon_curve(list(firsts.values())))
    for one in typical_heads(traces):
        trace = traces[one["sample"]]
        keep(f"one-head-{model_of(trace)}", made.received_map(trace, one["layer"], one["head"]))
    changed = {(model_of(one), one.prompt): one for one in reversed(traces) if one.interventions}
    problems = [(trace, (model_of(trace), trace.prompt)) for trace in traces if not trace.interventions]
    pairs = [(trace, changed[problem]) for trace, problem in problems if problem in changed]
    for one in typical_heads([trace for trace, _ in pairs])[-1:]:
        trace, masked = pairs[one["sample"]]
        keep("before-after", made.before_after(trace, masked, one["layer"], one["head"]))
    return written


def _change(trace: Trace) -> tuple[int, int]:
    """Slot and step at which the largest key of a kept map moves, and the map differs most from the one before."""
    assert trace.maps is not None
    if trace.causal:  # the map grows by a row per step, so the last two say most
        return 0, trace.steps - 1
    columns = trace.maps.float().sum(2)  # [slot, step, key]
    change = (columns[:, 1:] - columns[:, :-1]).abs().amax(-1)
    change += 1e6 * (columns[:, 1:].argmax(-1) != columns[:, :-1].argmax(-1))
    slot, step = divmod(int(change.argmax()), change.shape[1])
    return slot, step + 1
