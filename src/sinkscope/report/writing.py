"""`write`: a run's folder becomes one page that opens anywhere, without network, within a size that is kept to.

`show` is the same page of traces, in a frame of a notebook's cell, or as a file that a script writes.
"""

from __future__ import annotations

import html
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope import __version__
from sinkscope.errors import ReportError
from sinkscope.files import write_file
from sinkscope.report import page, sample
from sinkscope.report.overview import overview, overview_of
from sinkscope.report.sample import model_of, sink_ends, typical_heads
from sinkscope.tracing import Trace

LIMIT = 15_000_000  # bytes of a page
FULL_LIMIT = 3_000_000  # a sample that packs larger than this is kept in compact form
SAMPLES = 4  # per model
TWINS = 2  # of them, with a masked twin beside them
HEIGHT = 900  # pixels of a notebook's frame
logger = logging.getLogger(__name__)


def write(run: Path | str, out: Path | str | None = None, limit: int = LIMIT) -> Path:
    """Write report.html from a run's folder: its results, and an explorer of its traces; either may be missing.

    The file of a trace is a run of one trace, and its page stands beside it.
    """
    run = Path(run)
    named = traces_of(run)
    about = overview_of(run)
    beside = run.with_name(f"{run.name}.html") if run.is_file() else run / "report.html"
    return _write(named, about, run.stem if run.is_file() else run.name, Path(out or beside), limit)


def write_traces(traces: Sequence[Trace], out: Path | str, limit: int = LIMIT) -> Path:
    """Write an explorer of these traces, without a study."""
    if not traces:
        raise ReportError("Expected at least one trace to show, got none; make one with sk.trace(model, prompt).")
    return _write(_named(traces), overview(), "", Path(out), limit)


def traces_of(run: Path) -> list[tuple[str, Trace]]:
    """The traces of a run by their names, in the order of these; the file of a trace is its own run."""
    if run.is_file():
        return [(run.stem, Trace.load(run))]
    if not run.is_dir():
        raise ReportError(f"Expected the folder of a run or the file of a trace, and there is neither at {run}.")
    found = sorted((run / "traces").rglob("*.safetensors"))
    if not found and not (run / "results.json").is_file():
        raise ReportError(f"Expected a run with results.json or traces/*.safetensors, and {run} has neither.")
    return [(path.stem, Trace.load(path)) for path in found]


def _named(traces: Sequence[Trace]) -> list[tuple[str, Trace]]:
    return [(f"trace-{number}", trace) for number, trace in enumerate(traces, 1)]


def _write(named: list[tuple[str, Trace]], about: dict[str, Any], title: str, out: Path, limit: int) -> Path:
    text = _page(named, about, title, limit).encode("utf-8", "replace")
    try:
        return write_file(out, text)
    except OSError as error:
        raise ReportError(f"The report could not be written to {out} ({error}); choose another place.") from None


def _page(named: list[tuple[str, Trace]], about: dict[str, Any], title: str, limit: int) -> str:
    chosen, head = choose(named), f"{title} · sinkscope" if title else "sinkscope"
    data: dict[str, Any] = {"title": title, "overview": about, "samples": [], "note": "", **opening([])}
    packed = pack(chosen, limit - len(page.build(data, title=head)) - 2000)
    data["samples"] = [one for one, _ in packed]
    compared = [bar["model"] for one in about.get("findings", ()) for bar in one["bars"]]
    data |= opening([dict(chosen)[one["name"]] for one in data["samples"]], compared)
    data["note"] = note(data["samples"], len(named))
    return page.build(data, [blob for _, blob in packed], title=head)


def opening(traces: Sequence[Trace], compared: Sequence[str] = ()) -> dict[str, Any]:
    """The heads that the page shows first (of the models that are compared, if traced), their sinks' ends, the explorer's start."""
    heads = typical_heads(traces, compared)
    movement = [
        {
            "model": model_of(traces[one["sample"]]), "positions": traces[one["sample"]].positions,
            "prompt": traces[one["sample"]].prompt_length, "ends": sink_ends(traces[one["sample"]]),
        }
        for one in heads
    ]  # fmt: skip
    start = {} if not heads else {name: heads[-1][name] for name in ("sample", "layer", "head")}
    return {"highlights": heads, "movement": movement, "start": start}


def choose(named: list[tuple[str, Trace]]) -> list[tuple[str, Trace]]:
    """The first few samples of every model, models in the order in which they come.

    A problem that was traced unmasked and masked brings its masked twin along, so that both can be shown side by side.
    """
    models = list(dict.fromkeys(model_of(trace) for _, trace in named))
    kept: list[tuple[str, Trace]] = []
    for model in models:
        mine = [one for one in named if model_of(one[1]) == model]
        changed = [one for one in mine if one[1].interventions]
        plain = [one for one in mine if not one[1].interventions]
        some = (plain or changed)[: SAMPLES if len(models) > 1 else SAMPLES * 2]
        kept += some
        if plain:
            problems = [(trace.prompt, trace.steps) for _, trace in some]
            firsts = {(one[1].prompt, one[1].steps): one for one in reversed(changed)}
            kept += [firsts[problem] for problem in problems if problem in firsts][:TWINS]
            kept += [one for one in changed if one not in kept][: max(0, SAMPLES - len(some))]
    return kept


def pack(chosen: list[tuple[str, Trace]], room: int) -> list[tuple[dict[str, Any], str]]:
    """Headers and packed text that fit into `room` bytes together: full where that fits, else compact, else fewer."""
    made = []
    for name, trace in chosen:
        small = trace.received is not None and sample.full_size(trace) <= 4 * FULL_LIMIT
        best = _text(sample.full(trace, name)) if small else None
        if best is None or _size(best) > min(FULL_LIMIT, room // len(chosen)):
            best = _text(sample.compact(trace, name))
        made.append(best)
    # The first samples of every model, then the second ones: a list that is cut early still shows every model.
    seen: Counter[str] = Counter()
    ranked = []
    for place, (_, trace) in enumerate(chosen):
        ranked.append((seen[model_of(trace)], place))
        seen[model_of(trace)] += 1
    kept: list[int] = []
    for _, place in sorted(ranked):
        if sum(_size(made[i]) for i in [*kept, place]) <= room:
            kept.append(place)
    return [made[i] for i in sorted(kept)]


def _text(made: tuple[dict[str, Any], page.Blob]) -> tuple[dict[str, Any], str]:
    return made[0], made[1].text()


def _size(made: tuple[dict[str, Any], str]) -> int:
    return len(page.data_block(made[0])) + len(made[1])


def note(heads: Sequence[dict[str, Any]], total: int) -> str:
    """What the page holds and what it leaves out, said at its foot."""
    compact = sum(head["detail"] == "compact" for head in heads)
    return (
        f"Written by sinkscope {__version__}; no network is needed or used. Traces in this file: {len(heads)} of {total}, "
        f"{compact} of them too large to keep every head's map. Those hold the mean of each layer's heads, rounded to 8 bits, "
        "each head's largest key, and the whole map of a few heads; `sinkscope view RUN` shows everything."
    )


# ---- in a notebook ----


class Explorer:
    """What a notebook displays, in a frame that can reach neither the notebook nor the network."""

    def __init__(self, traces: list[Trace], height: int = HEIGHT) -> None:
        self.text = _page(_named(traces), overview(), "", LIMIT)
        self.height, self.count = height, len(traces)

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:0"
        opened = f'<iframe sandbox="allow-scripts allow-downloads" title="sinkscope explorer" style="{style}"'
        return f'{opened} srcdoc="{html.escape(self.text)}"></iframe>'

    def __repr__(self) -> str:
        return f"An explorer of {self.count} trace(s)."


def show(trace: Trace | list[Trace], height: int = HEIGHT, out: Path | str | None = None) -> Explorer | Path:
    """The explorer of one trace or several: displayed by a notebook; elsewhere written to a file, whose path is returned.

    out: the file to write, in a notebook too; without it a script writes a temporary one, and its path is logged too.
    """
    traces = trace if isinstance(trace, list) else [trace]
    if out is not None:
        return write_traces(traces, out)
    if _in_notebook():
        return Explorer(traces, height)
    written = write_traces(traces, Path(tempfile.mkdtemp(prefix="sinkscope-")) / "explorer.html")
    logger.info("the explorer is in %s", written)
    return written


def _in_notebook() -> bool:
    """Whether what a cell returns is displayed: under a Jupyter kernel, not in a script or a terminal."""
    shell: Any = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")
