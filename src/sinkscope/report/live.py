"""`view MODEL`: a page on which a model fills its canvas, and fills it again with some of its keys masked.

One decode at a time, and one that waits. Every denoising step is sent as it happens: the canvas, what each token receives, and
the sinks. A finished decode is a trace, which the explorer shows at its own address.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from torch import Tensor

from sinkscope.attention.call import Call, CallResult, Tap
from sinkscope.attention.patch import patched
from sinkscope.conditions import Condition
from sinkscope.decoding.canvas import Step
from sinkscope.errors import ReportError, SinkscopeError
from sinkscope.interventions import Intervention, intervene
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.report import page
from sinkscope.report.server import Server, read_body
from sinkscope.report.view import NOTHING, Recording
from sinkscope.sinks import describe
from sinkscope.sinks.rules import Rule, rule_from_dict
from sinkscope.tracing.record import trace
from sinkscope.tracing.recorder import Keep
from sinkscope.tracing.trace import Trace
from sinkscope.validation import settings, validate

ALLOWED = (
    "mask_sinks",
    "mask_random",
    "mask_positions",
    "mask_others",
    "attenuate",
)  # conditions that the page may ask for
WORDS = ("length", "block", "steps", "commit", "threshold", "temperature", "seed", "stop")
LONGEST = 4_000  # characters of a prompt
KEPT = 24  # finished decodes that the explorer can open; older ones are forgotten
WAITING = 1  # decodes that may wait for the one at work
EXAMPLES = (
    "Tom has 9 apples. Then Tom buys 5.\nHow many apples are left?",
    "Ann has 3 pens. Then Ann loses 1. Then Ann finds 4.\nHow many pens are left?",
    'def f(x):\n    """Return x plus 3, then times 2."""',
)


class StoppedError(Exception):
    """The decode was ended: its browser went away, or somebody pressed Stop."""


@settings(ReportError)
class Asked:
    """One decode, as the page asks for it."""

    model: int
    prompt: str = Field(min_length=1, max_length=LONGEST)
    words: Mapping[str, Any] = Field(default_factory=dict)
    entry: Mapping[str, Any] | None = None
    rule: Mapping[str, Any] = Field(default_factory=lambda: {"rule": "head_share", "epsilon": 0.3})

    def intervention(self) -> Intervention | None:
        """What is masked, by the words of a study file."""
        if self.entry is None:
            return None
        if self.entry.get("name") not in ALLOWED:
            raise ReportError(f"Expected an intervention among {', '.join(ALLOWED)}.")
        found = Condition.read(self.entry)
        if len(found) != 1 or not isinstance(found[0].change, Intervention):
            raise ReportError("Expected one intervention, got a sweep; give one value for each setting.")
        return found[0].change


class Watch(Tap):
    """What each key received at the step at work, layer by layer: [head, key], on the device that made it."""

    def __init__(self, model: Model, rule: Rule) -> None:
        self.causal, self.rule = model.causal, rule
        self.sums: dict[int, Tensor] = {}
        self.queries, self.seen = 0, torch.zeros(0)

    def needs_sums_fused(self, call: Call) -> bool:
        return call.forward is None or call.forward.kind == "denoise"

    def take(self, call: Call, result: CallResult) -> None:
        forward = call.forward
        if forward is None or forward.kind != "denoise":
            return
        received = result.received_by_all[0]
        before = self.sums.get(call.layer)
        if self.causal and before is not None and call.queries < call.keys:  # one row more of the same map
            received = received + torch.nn.functional.pad(before, (0, received.shape[-1] - before.shape[-1]))
        self.sums[call.layer] = received
        if call.layer == 0:
            seen = forward.seen(call.keys, forward.labels.device)[0].sum(0).float().cpu()
            queries = int((forward.labels[0] >= 0).sum())
            if self.causal and len(self.seen) and call.queries < call.keys:
                seen = seen + torch.nn.functional.pad(self.seen, (0, len(seen) - len(self.seen)))
                queries += self.queries
            self.seen, self.queries = seen, queries

    def at_step(self, step: Step) -> dict[str, Any]:
        """The event of a step: the canvas, the mean attention on each key, heads with a sink there, and each head's sink."""
        sums = torch.stack([self.sums[layer].float().cpu() for layer in sorted(self.sums)])  # [layer, head, key]
        share = sums / self.seen.clamp(min=1)
        marks = self.rule.marks(sums, float(self.queries), self.seen > 0, self.seen)
        best = share.masked_fill(~marks, -1).max(-1)
        return {
            "step": step.index,
            "canvas": step.canvas[0].tolist(),
            "share": [round(value, 4) for value in share.mean((0, 1)).tolist()],
            "sinks": marks.sum((0, 1)).tolist(),
            "grid": torch.where(best.values > 0, best.indices, -1).tolist(),
            "strength": [[round(max(0.0, value), 3) for value in row] for row in best.values.tolist()],
        }


def write_python(asked: Asked, name: str, model: Model, intervention: Intervention | None) -> str:
    """The lines of Python that give the same tokens."""
    dtype = str(model.dtype).removeprefix("torch.")
    words = "".join(f", {name}={value!r}" for name, value in asked.words.items())
    change = "" if intervention is None else f", interventions={write_call(intervention)}"
    return "\n".join([
        "import sinkscope as sk",
        "",
        f"model = sk.load({name!r}, dtype={dtype!r})",
        f"trace = sk.trace(model, {asked.prompt!r}{words}{change})",
        "print(trace.text)",
    ])  # fmt: skip


def write_call(value: Any) -> str:
    """A setting as Python, with what is not the default."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = []
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        default = field.default if field.default is not dataclasses.MISSING else None
        if found != default or field.default is dataclasses.MISSING:
            given.append(f"{field.name}={write_call(found)}")
    return f"sk.{type(value).__name__}({', '.join(given)})"


class Live(Server):
    """The page of one or two models."""

    def __init__(
        self, names: Sequence[str], port: int = 0, dtype: str | None = None, device: str | None = None
    ) -> None:
        self.names = list(names)
        self.load = partial(load, dtype=dtype, device=device)
        self.models: dict[int, Model] = {0: self.load(self.names[0])}  # the others when they are asked for
        self.recordings: dict[int, Recording] = {}
        self.decodes = 0
        self.turn = threading.Lock()  # one decode at a time
        self.waiting = 0
        self.stopping: set[threading.Event] = set()
        super().__init__(self._routes(), port)

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._home),
            Route("/run", self._run, methods=["POST"]),
            Route("/stop", self._stop, methods=["POST"]),
            Route("/trace/{decode:int}/", self._explore),
            Route("/trace/{decode:int}/data/{number}/{name}", self._slice),
        ]

    async def _home(self, request: Request) -> Response:
        model = self.models[0]
        defaults = {name: value for name, value in model.defaults.to_dict().items() if name in WORDS}
        live = {
            "models": self.names, "causal": model.causal, "examples": list(EXAMPLES), "defaults": defaults,
            "longest": LONGEST,
        }  # fmt: skip
        title = " and ".join(self.names)
        return HTMLResponse(page.build({"live": live}, title=f"{title} · sinkscope", remote=True, start="live/main.js"))

    async def _stop(self, request: Request) -> Response:
        for one in self.stopping:
            one.set()
        return Response(status_code=204)

    async def _explore(self, request: Request) -> Response:
        found = self.recordings.get(request.path_params["decode"])
        return NOTHING if found is None else HTMLResponse(found.text)

    async def _slice(self, request: Request) -> Response:
        found = self.recordings.get(request.path_params["decode"])
        return NOTHING if found is None else await found.send_slice(request)

    async def _run(self, request: Request) -> Response:
        asked = validate(Asked, read_object(await read_body(request)), "the request", ReportError)
        if not 0 <= asked.model < len(self.names):
            raise ReportError(f"Expected a model from 0 to {len(self.names) - 1}, got {asked.model}.")
        if unknown := set(asked.words) - set(WORDS):
            raise ReportError(f"Expected decode settings among {', '.join(WORDS)}, got {sorted(unknown)[0][:40]!r}.")
        intervention, rule = asked.intervention(), rule_from_dict(asked.rule)
        if self.waiting > WAITING:
            raise ReportError("A decode is at work and one waits; press Stop, or wait.")
        return StreamingResponse(self._events(asked, intervention, rule), media_type="text/event-stream")

    async def _events(self, asked: Asked, intervention: Intervention | None, rule: Rule) -> AsyncIterator[str]:
        """Events of a decode as they happen; a browser that goes away ends it."""
        loop, events, stop = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None](), threading.Event()

        def send(event: dict[str, Any] | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        self.stopping.add(stop)
        self.waiting += 1
        work = asyncio.ensure_future(run_in_threadpool(self._work, asked, intervention, rule, send, stop))
        try:
            while (event := await events.get()) is not None:
                yield f"data: {json.dumps(event, allow_nan=False)}\n\n"
        finally:
            stop.set()
            self.stopping.discard(stop)
            await asyncio.shield(work)

    def _work(
        self, asked: Asked, intervention: Intervention | None, rule: Rule,
        send: Callable[[dict[str, Any] | None], None], stop: threading.Event,
    ) -> None:  # fmt: skip
        try:
            with self.turn:
                if not stop.is_set():
                    self._decode(asked, intervention, rule, send, stop)
        except StoppedError:
            send({"stopped": True})
        except SinkscopeError as error:
            send({"error": str(error)})
        except Exception as error:
            send({"error": f"{type(error).__name__}: {error}"})
        finally:
            self.waiting -= 1
            send(None)

    def _decode(
        self, asked: Asked, intervention: Intervention | None, rule: Rule,
        send: Callable[[dict[str, Any] | None], None], stop: threading.Event,
    ) -> None:  # fmt: skip
        if asked.model not in self.models:
            send({"loading": self.names[asked.model]})
            self.models[asked.model] = self.load(self.names[asked.model])
        model, started, known = self.models[asked.model], time.perf_counter(), set[int]()
        watch = Watch(model, rule)

        def on_step(step: Step) -> None:
            if stop.is_set():
                raise StoppedError
            event = watch.at_step(step)
            fresh = sorted(set(event["canvas"]) - known)
            known.update(fresh)
            send({**event, "vocabulary": show_tokens(model, fresh)})

        # Without an intervention nothing counts what it took away, layer by layer.
        changing = nullcontext() if intervention is None else intervene(model, intervention)
        with patched(model.module, watch), changing as active:
            made = trace(model, asked.prompt, on_step=on_step, keep=Keep(), progress=False, **asked.words)
        made = dataclasses.replace(made, interventions=[] if intervention is None else [intervention.to_dict()])
        effect = None if active is None else active.effect
        send({
            "done": True, "text": made.text, "tokens": made.canvas[-1].tolist(), "prompt": made.prompt_length,
            "steps": made.steps, "seconds": round(time.perf_counter() - started, 2), "trace": self._keep(made),
            "vocabulary": show_tokens(model, sorted(set(made.canvas[-1].tolist()) - known)),
            "removed": None if effect is None else effect.mass_share, "keys": None if effect is None else effect.key_share,
            "python": write_python(asked, self.names[asked.model], model, intervention),
        })  # fmt: skip

    def _keep(self, made: Trace) -> int:
        """Its number in the address of its explorer."""
        number, self.decodes = self.decodes, self.decodes + 1
        self.recordings[number] = Recording([(f"decode-{number + 1}", made)], str(made.model.get("name", "model")))
        self.recordings.pop(number - KEPT, None)
        return number


def show_tokens(model: Model, ids: Sequence[int]) -> dict[str, list[str]]:
    """Texts and kinds of tokens that the page does not know yet."""
    found = describe(model.tokenizer, ids, model.mask_id)
    return {str(token): [text[:40], kind] for token, (text, kind) in found.items()}


def read_object(body: bytes) -> Mapping[str, Any]:
    """A JSON object, or one sentence."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ReportError("Expected a JSON object.") from None
    if not isinstance(found, dict):
        raise ReportError("Expected a JSON object.")
    return cast("Mapping[str, Any]", found)
