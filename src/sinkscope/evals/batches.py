"""A batch of requests: what a worker must know to answer it, here or on another machine, and the answers themselves."""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.decoding import Step, decode
from sinkscope.errors import TaskError, error_envelope
from sinkscope.evals.masking import as_list
from sinkscope.evals.store import key
from sinkscope.interventions.conditions import Condition, condition_from_dict
from sinkscope.models.base import Model, pad
from sinkscope.settings.decode import Decode

CHECK_EVERY = 8  # tokens between two looks for stop strings in a left-to-right generation
Ids = tuple[int, ...]
Outcome = dict[str, Any]  # "answers": one record per request; "effect": what was masked; "attention": what computed it
Kind = Literal["generate", "score", "trace", "divergence"]


@dataclass(frozen=True)
class Request:
    """A prompt that is continued up to one of its stops, or whose answer's likelihood is asked for."""

    name: str  # by everything that its answer depends on
    prompt: Ids
    stops: tuple[str, ...] = ()
    answer: Ids = ()


@dataclass(frozen=True)
class Batch:
    """Requests that are answered in one go.

    kind: generate, score (likelihoods), trace (sinks of generations) or divergence (of logits at the commits).
    """

    kind: Kind
    requests: tuple[Request, ...]
    settings: Decode | None = None  # of generations
    samples: int = 1
    rows: int = 8  # of a batch inside a likelihood
    seed: int = 0
    model: str = ""  # where a queue holds batches of several

    @property
    def id(self) -> str:
        return key(kind=self.kind, names=[one.name for one in self.requests])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "settings": None if self.settings is None else self.settings.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Batch:
        settings = None if values["settings"] is None else Decode.from_dict(values["settings"])
        return cls(**{**values, "settings": settings, "requests": tuple(Request(**one) for one in values["requests"])})


@dataclass(frozen=True)
class Job:
    """What all batches of a run share: the model as every machine finds it, and what is changed in it."""

    model: str
    fingerprint: str  # of the weights that the requests were made for
    dtype: str | None = None
    device: str | None = None
    condition: dict[str, Any] | None = None
    threads: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


RunBatches = Callable[[Job, Sequence[Batch]], Iterator[tuple[Batch, Outcome]]]  # of workers elsewhere
Runner = Callable[[Any, Sequence[Batch]], Iterator[tuple[Batch, Outcome]]]  # of a condition or an intervention


def runner_of(
    model: Model, run: RunBatches | None = None, dtype: str | None = None, device: str | None = None
) -> Runner:
    """What answers batches of this model: this process, under any intervention, or workers elsewhere, under a condition."""
    if run is None:
        return lambda change, batches: ((batch, run_batch(model, change, batch)) for batch in batches)

    def elsewhere(change: Any, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Outcome]]:
        if not isinstance(change, Condition | None):
            raise TaskError(
                f"Expected a condition as study files name it, so that other machines can make it, got {change!r}; leave the "
                "engine out to run it here."
            )
        condition = None if change is None else change.to_dict()
        return run(Job(model.name, model.fingerprint, dtype, device, condition), batches)

    return elsewhere


def run_batch(model: Model, change: Any, batch: Batch) -> Outcome:
    """Answer a batch under a condition or an intervention; every value is plain data that JSON holds exactly."""
    intervention = change.intervention(batch.seed) if isinstance(change, Condition) else change
    # A divergence compares with the model as it is, and intervenes itself.
    with intervened(model, None if batch.kind == "divergence" else intervention) as active:
        records = KINDS[batch.kind](model, intervention, batch)
    effect = None if active is None else asdict(active.effect)
    return {"answers": records, "effect": effect, "attention": attention_of(model, intervention)}


def intervened(model: Model, intervention: Any) -> AbstractContextManager[Any]:
    """The intervention in force, one or several; None where there is none."""
    from sinkscope.interventions import intervene

    return nullcontext() if intervention is None else intervene(model, *as_list(intervention))


def _generated(model: Model, intervention: Any, batch: Batch) -> list[dict[str, Any]]:
    assert batch.settings is not None
    stops = [list(one.stops) for one in batch.requests]
    prompts = [torch.tensor([one.prompt]) for one in batch.requests]
    rows, order = answer_tokens(model, prompts, batch.settings, stops)
    # In other layouts each row's answer begins in a column of its own.
    timed = batch.settings.layout == "answer" and not model.causal
    records: list[dict[str, Any]] = []
    for row, own, when in zip(rows, stops, order, strict=True):
        count = kept_tokens(model, row, own)  # what follows depends on how long the rest of the batch took
        steps = {"steps": when[:count].tolist()} if timed else {}
        records.append({"text": read_answer(model, row, own)[0], "ids": row[:count], **steps})
    return records


class _EnoughError(Exception):
    """Every row of the batch has reached one of its stop strings; what follows would be cut off anyway."""


def answer_tokens(
    model: Model, prompts: list[Tensor], settings: Decode, stops: Sequence[list[str]] = ()
) -> tuple[list[list[int]], Tensor]:
    """Prompts [1, position] → answer ids, in one batch; ends as soon as every row has reached one of its stops.

    What is committed stays, and blocks are filled from left to right: so ending early changes no text before a stop.
    The second value is [batch, position]: the step of the last commit of every position of the answer, −1 for none.
    """
    ids, mask = pad(prompts, model)
    width = ids.shape[1]
    order, whole = torch.full((len(prompts), 0), -1), ids[:, width:]
    # In other layouts each row's answer begins in a column of its own.
    early = bool(stops) and all(stops) and settings.layout == "answer"

    def look(step: Step) -> None:
        nonlocal order, whole
        if order.shape[1] < step.canvas.shape[1] - width:
            order = torch.full((len(prompts), step.canvas.shape[1] - width), -1)
        order[step.committed[:, width:].cpu()] = step.index
        if not early or (settings.family == "autoregressive" and step.index % CHECK_EVERY):
            return
        whole = step.canvas[:, width : step.block[1]]
        if model.mask_id is not None and bool((whole == model.mask_id).any()):
            return
        if all(read_answer(model, row, own)[1] for row, own in zip(whole.tolist(), stops, strict=True)):
            raise _EnoughError

    try:
        answers = decode(model, ids, settings, mask, history=False, on_step=look).returned
    except _EnoughError:
        answers = tuple(whole)
    rows: list[list[int]] = [answer.tolist() for answer in answers]
    return rows, order


def kept_tokens(model: Model, ids: list[int], stops: Sequence[str]) -> int:
    """How many tokens stand before the end token, or up to and with the first stop string."""
    count = bisect.bisect_left(range(len(ids)), True, key=lambda count: read_answer(model, ids[:count], stops)[1])
    return count - 1 if count and ids[count - 1] in _ends(model, stops) else count


def read_answer(model: Model, ids: list[int], stops: Sequence[str]) -> tuple[str, bool]:
    """Text before the first end token and the first stop string, and whether there was one."""
    ends = _ends(model, stops)
    first = next((index for index, token in enumerate(ids) if token in ends), None)
    # Cleaning up would take the space before a comma away, in program text too.
    tokenizer = model.require_tokenizer()
    text = str(tokenizer.decode(ids[:first], skip_special_tokens=True, clean_up_tokenization_spaces=False))
    ended = first is not None or any(stop in text for stop in stops)
    for stop in stops:
        text = text.partition(stop)[0]
    return text, ended


def _ends(model: Model, stops: Sequence[str]) -> set[int | None]:
    """End tokens, and stop strings that are a token of their own."""
    known = model.require_tokenizer().get_added_vocab()
    return {*model.eos_ids, model.eot_id, *(known[stop] for stop in stops if stop in known)}


def _scored(model: Model, intervention: Any, batch: Batch) -> list[dict[str, Any]]:
    from sinkscope.evals.scoring import chain_likelihoods, masked_likelihood

    # What ranks the forward before, or starts at the second, needs two forwards of each canvas.
    changes = [one for one in as_list(intervention) if not one.is_noop]
    settle = any(
        one.maps() or getattr(one, "since", None) == "second" or getattr(one, "steps", None) for one in changes
    )
    pairs = [(list(one.prompt), list(one.answer)) for one in batch.requests]
    if model.causal:
        return [asdict(one) for one in chain_likelihoods(model, pairs, settle=settle)]
    words: dict[str, Any] = {"samples": batch.samples, "batch_size": batch.rows, "seed": batch.seed, "settle": settle}
    return [asdict(masked_likelihood(model, *pair, **words)) for pair in pairs]


def _traced(model: Model, intervention: Any, batch: Batch) -> list[dict[str, Any]]:
    """One record for all: shares of the tokens that are sinks, heads with static, moving or no sinks, and the order of commits."""
    from sinkscope.sinks import head_dynamics, token_shares
    from sinkscope.tracing import trace
    from sinkscope.tracing.record import decoding_order

    traces = []
    for asked in batch.requests:
        one = trace(model, torch.tensor([asked.prompt]), batch.settings)
        traces += one if isinstance(one, list) else [one]
    shares = token_shares(traces).head(10).to_dicts()
    classes = [name for one in traces for name in head_dynamics(one)["class"].to_list()]
    heads = [{"class": name, "heads": classes.count(name), "of": len(classes)} for name in sorted(set(classes))]
    orders = [asdict(decoding_order(one)) for one in traces]
    return [{"shares": shares, "heads": heads, "order": orders}]


def _diverged(model: Model, intervention: Any, batch: Batch) -> list[dict[str, Any]]:
    from sinkscope.evals.shift import divergences

    assert batch.settings is not None
    return divergences(model, intervention, [list(one.prompt) for one in batch.requests], batch.settings)


KINDS = {"generate": _generated, "score": _scored, "trace": _traced, "divergence": _diverged}


def attention_of(model: Model, intervention: Any) -> str:
    """What computed the attention: the model's own implementation, or ours where it had to be changed."""
    if intervention is None:
        return str(getattr(model.config, "_attn_implementation", "own"))
    from sinkscope.attention.attend import choose_backend

    return str(choose_backend(torch.empty(0, dtype=model.dtype, device=model.device)))


def total_effect(parts: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Shares of keys and of attention that were taken away, and what leaked, over the records of all batches."""
    if not parts:
        return None
    from sinkscope.interventions import Effect

    ordered = sorted(parts, key=lambda part: str(part["key"]))  # sums of floats depend on the order, which may be any
    sums = {name: sum(part[name] for part in ordered) for name in ("keys", "keys_seen", "mass", "mass_seen")}
    return Effect(**sums, leak=max(part["leak"] for part in ordered)).to_dict()


# ---- on another machine


def answer(context: str, payload: str, folder: Path) -> dict[str, Any]:
    """A `Batch` as JSON under a `Job` as JSON → its outcome, or why there is none; what the Ray engine calls."""

    def work() -> dict[str, Any]:
        job, batch = Job(**json.loads(context)), Batch.from_dict(json.loads(payload))
        torch.set_num_threads(job.threads)
        model = weights_of(job.model, job.dtype, job.device)
        change = job.condition and condition_from_dict(job.condition)
        # As text, since what carries it takes no NaN, which the error of a single sample is.
        return {"result": {"outcome": json.dumps(run_batch(model, change, batch))}, "fingerprint": model.fingerprint}

    return error_envelope(work)


@functools.lru_cache(maxsize=1)
def weights_of(name: str, dtype: str | None, device: str | None) -> Model:
    """The model of that name; the one before it is let go."""
    from sinkscope.models.load import load

    return load(name, dtype=dtype, device=device)
