"""`view`: the explorer of a run that is too big for one file, served slice by slice to this machine only."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sinkscope.errors import ReportError
from sinkscope.report import page
from sinkscope.report.overview import overview, overview_of
from sinkscope.report.sample import canvas_codes, header, largest, layer_means, leads, map_codes, seen_counts, totals
from sinkscope.report.server import Server
from sinkscope.report.writing import opening, traces_of
from sinkscope.sinks.rules import GROUPS, rule_of_form
from sinkscope.tracing import Trace
from sinkscope.tracing.heads import head_dynamics
from sinkscope.tracing.trace import single_threaded

LARGE = 1 << 24  # received values above which the page starts with one layer instead of the mean of all
NOTHING = PlainTextResponse("There is nothing at this address.", 404)


class Recording:
    """Traces with the page that explores them, and the slices that it asks for."""

    def __init__(self, named: Sequence[tuple[str, Trace]], title: str, about: Path | None = None) -> None:
        self.traces = [trace for _, trace in named]
        self.title = title
        self.text = self._page(named, about).encode("utf-8", "replace")

    def _page(self, named: Sequence[tuple[str, Trace]], about: Path | None) -> str:
        samples = []
        for name, trace in named:
            large = trace.steps * trace.layers * trace.heads_count * trace.positions * 3 > LARGE
            head = header(trace, name, classes=not large)
            layer = trace.layers // 2 if large else -1
            samples.append({**head, "detail": "remote", "lead": None, "startLayer": layer})
        all_small = all(one["startLayer"] < 0 for one in samples)
        found = overview() if about is None else overview_of(about)
        compared = [bar["model"] for one in found.get("findings", ()) for bar in one["bars"]]
        start = opening(self.traces if all_small else [], compared)
        if not start["start"] and samples:
            start["start"] = {"layer": samples[0]["startLayer"]}
        facts = {"title": self.title, "overview": found, "note": "Served from this machine."}
        return page.build({**facts, "samples": samples, **start}, title=f"{self.title} · sinkscope", remote=True)

    def slice(self, number: str, name: str, words: Words) -> bytes | None:
        """The bytes of a part of a trace; None if there is no such part."""
        if number not in map(str, range(len(self.traces))) or name not in SLICES:
            return None
        with torch.inference_mode():
            return SLICES[name](self.traces[int(number)], words)

    async def send_slice(self, request: Request) -> Response:
        """Answer a request for a part of a trace."""
        where = request.path_params
        found = await run_in_threadpool(self.slice, where["number"], where["name"], dict(request.query_params))
        return NOTHING if found is None else Response(found, media_type="application/octet-stream")


class Viewer(Server):
    """A run, or the file of a trace, as a page on this machine."""

    def __init__(self, run: Path | str, port: int = 0) -> None:
        folder = Path(run)
        self.recording = Recording(traces_of(folder), folder.name, folder)
        self.traces = self.recording.traces

        async def home(request: Request) -> Response:
            return HTMLResponse(self.recording.text)

        routes: list[BaseRoute] = [Route("/", home), Route("/data/{number}/{name}", self.recording.send_slice)]
        super().__init__(routes, port)


# ---- parts of a trace as plain little-endian bytes, made when the page asks for them

Words = dict[str, str]


def whole(trace: Trace, words: Words) -> bytes:
    """The file that `trace.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return trace.save(Path(folder) / "trace.safetensors").read_bytes()


def canvas(trace: Trace, words: Words) -> bytes:
    """u4 codes [step + 1, position], then f2 confidence [step, position]."""
    return canvas_codes(trace).tobytes() + trace.confidence.half().numpy().tobytes()


@single_threaded
def plane(trace: Trace, words: Words) -> bytes:
    """f4 totals [step], then f4 column sums [step, key] of one head, of a layer's mean, or of the mean of all."""
    layer, head = _number(words, "layer", -1, trace.layers), _number(words, "head", -1, trace.heads_count)
    group = _group(words)
    if layer >= 0:
        part = trace.select(layers=[layer], heads=None if head < 0 else [head])
        values = part.scores(group)[:, 0].mean(1)
    else:
        sums = (received.sum((1, 2)) for _, (received,) in trace.columns_by_layer(group))
        values = sum(sums, torch.zeros(trace.steps, trace.positions)) / (trace.layers * trace.heads_count)
    return values.sum(-1).numpy().tobytes() + values.contiguous().numpy().tobytes()


def paths(trace: Trace, words: Words) -> bytes:
    """f4 scores, f4 totals, u2 keys of each head's largest key, [layer, head, step] all three."""
    group = _group(words)
    keys, scores = largest(trace, group)
    return b"".join([scores.tobytes(), totals(trace, (group,))[0].tobytes(), keys.tobytes()])


def seen(trace: Trace, words: Words) -> bytes:
    """u4 queries that see each key, [step, key]; nothing where every query sees every key."""
    group = _group(words)
    return b"" if trace.seen is None else seen_counts(trace, group).tobytes()


def heads(trace: Trace, words: Words) -> bytes:
    """JSON: class, direction, mean score of the largest key and presence of each head, for any epsilon, unit and group."""
    epsilon = words.get("epsilon", "3")
    try:
        rule = rule_of_form(words.get("unit", "sum"), float(epsilon), _group(words))
    except ValueError:
        raise ReportError(f"Expected epsilon to be a number, got {epsilon[:20]!r}.") from None
    table = head_dynamics(trace, rule)
    return json.dumps(table.select("class", "direction", "strength", "presence").fill_null(0).rows()).encode()


def lead(trace: Trace, words: Words) -> bytes:
    """u4 largest key per step, [1 + layer, step]: of the mean of all layers, then of each layer."""
    return leads(layer_means(trace)).astype(np.uint32).tobytes()


def attention(trace: Trace, words: Words) -> bytes:
    """u1 codes [query, key] of one kept attention map at one step."""
    if trace.maps is None:
        raise ReportError("This trace has no attention maps; keep some with Keep(maps=…).")
    slot, step = _number(words, "slot", 0, trace.maps.shape[0]), _number(words, "step", 0, trace.steps)
    return map_codes(trace.maps[slot, step]).tobytes()


def reasons(trace: Trace, words: Words) -> bytes:
    """f4 [4, key]: what a kept head's keys score at one step, and why."""
    if trace.reasons is None:
        raise ReportError("This trace has no reasons of sinks; they are kept with attention maps, Keep(maps=…).")
    slot, step = _number(words, "slot", 0, len(trace.reasons)), _number(words, "step", 0, trace.steps)
    return trace.reasons[slot, step].numpy().tobytes()


def _number(words: Words, name: str, low: int, stop: int) -> int:
    text = words.get(name, str(low))
    if not text.removeprefix("-").isdecimal() or not low <= int(text) < stop:
        raise ReportError(f"Expected {name} to be a whole number from {low} to {stop - 1}, got {text[:20]!r}.")
    return int(text)


def _group(words: Words) -> str:
    group = words.get("group", "all")
    if group not in GROUPS:
        raise ReportError(f"Expected a group of queries among {', '.join(GROUPS)}, got {group[:20]!r}.")
    return group


SLICES: dict[str, Callable[[Trace, Words], bytes]] = {
    "canvas": canvas, "plane": plane, "seen": seen, "paths": paths, "heads": heads, "lead": lead, "reasons": reasons,
    "map": attention, "file": whole,
}  # fmt: skip
