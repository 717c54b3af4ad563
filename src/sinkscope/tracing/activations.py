"""`activations`: vectors of a generation for sparse autoencoders and probes, as safetensors shards with step, place and token."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sinkscope import io
from sinkscope.decoding import decode, resolve_settings
from sinkscope.errors import ReadingError
from sinkscope.fields import among, maybe, need, whole
from sinkscope.interventions.activations import At, positions
from sinkscope.interventions.base import WINDOW, Steps, within
from sinkscope.interventions.hooks import HookContext, find_places, hook
from sinkscope.models.model import Model, Prompt, is_ids, is_messages

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Decode

AT = get_args(At)[:-1]  # sinks are known of the last step only
BESIDE = ("prompt", "step", "position", "state", "token")  # int32 [vector] each; state: 0 masked, 1 committed, 2 prompt
MANIFEST = "activations.json"


@dataclass(frozen=True)
class Activations:
    """A folder of shards; iterating reads one at a time: a dict of "layers.3.resid_post" [vector, width] and `BESIDE`."""

    folder: Path

    @property
    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for shard in self.shards:
            yield load_file(shard)


def activations(
    model: Model,
    prompts: Prompt | Iterable[Prompt],
    layers: Sequence[int] | None = None,
    where: str = "resid_post",
    steps: Steps | None = None,
    *,
    out: str | Path = "activations",
    settings: Decode | None = None,
    at: At = "all",
    batch: int = 8,
    shard: int = 64 << 20,
    dtype: torch.dtype = torch.float16,
    **words: Any,
) -> Activations:
    """Generate from every prompt and write the activations at a place of these layers to `out`, shard by shard.

    prompts: text, chat messages or token ids each.
    Beside each vector are the prompt's number, the step, the position, its state (0 masked, 1 committed, 2 prompt) and the
    token on the canvas. steps: (from, to), half-open; floats are shares of the generation. at: all, masked, committed or
    prompt positions. batch: prompts decoded together; they are taken from `prompts` as they are needed. shard: bytes of
    vectors that are held before they are written. settings, words (length=32, …): how to decode. Called again with the same
    arguments, it is resumed.
    """
    numbers = range(int(model.config.num_hidden_layers)) if layers is None else sorted(layers)
    places = [f"layers.{number}.{where}" for number in numbers]
    find_places(model.module, places)
    need("at", at, among(AT), ReadingError)
    need("steps", steps, maybe(WINDOW), ReadingError)
    for name, value in (("batch", batch), ("shard", shard)):
        need(name, value, whole(1), ReadingError)
    folder = Path(out)
    asked = {
        "schema": 1, "model": model.identity(), "places": places, "steps": steps and list(steps), "at": at, "batch": batch,
        "shard": shard, "dtype": str(dtype).removeprefix("torch."), "settings": settings and settings.to_dict(), "words": words,
    }  # fmt: skip
    _claim(folder, json.loads(json.dumps(asked, default=str)))
    alone = isinstance(prompts, str) or is_messages(prompts) or is_ids(prompts)
    source, number = iter([prompts] if alone else prompts), 0
    while texts := list(islice(source, batch)):
        _batch(model, texts, number, places, folder, (settings, words, steps, at, shard, dtype))
        number += len(texts)
    return Activations(folder)


def _claim(folder: Path, asked: dict[str, Any]) -> None:
    path = folder / MANIFEST
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf-8"))
        if other := [name for name in asked if there.get(name) != asked[name]]:
            raise ReadingError(
                f"Expected {folder} to hold activations of these very settings, and {', '.join(other)} differ; name another folder."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    io.write(path, json.dumps(asked, indent=1) + "\n")


def _batch(model: Model, texts: list[Any], first: int, places: list[str], folder: Path, how: tuple[Any, ...]) -> None:
    settings, words, steps, at, most, dtype = how
    digest = hashlib.sha256(json.dumps(texts, default=lambda one: one.tolist()).encode()).hexdigest()  # a tensor of ids
    if _finished(folder, first, digest):
        return
    ids, mask, _ = model.batch(texts)
    assert mask is not None
    chosen = resolve_settings(settings or model.defaults, model, ids.shape[1], words)
    padding = (mask == 0).sum(1)
    held: dict[str, list[Tensor]] = defaultdict(list)  # what is not written yet: vectors by place, and all of `BESIDE`
    shards = count()

    def write(last: bool) -> None:
        tensors = {name: torch.cat(held[name] or [torch.zeros(0, dtype=torch.int32)]) for name in {*held, *BESIDE}}
        with io.whole(folder / f"{first:08d}-{next(shards):04d}.safetensors") as partial:
            save_file(tensors, str(partial), {"prompts": digest, "last": str(int(last))})
        held.clear()

    def take(activation: Tensor, context: HookContext) -> None:
        if context.kind != "denoise" or not within(steps, context.step or 0, context.share):
            return
        picked = positions(at, activation, context)
        assert picked is not None and context.groups is not None and context.canvas is not None
        picked, place = picked[: context.rows], f"layers.{context.layer}.{context.place}"
        if place == places[0]:
            # Only now: the last shard of a batch is never an empty one.
            if sum(part.nbytes for name in {*held} - {*BESIDE} for part in held[name]) >= most:
                write(last=False)
            rows, columns = (part.cpu() for part in picked.nonzero().unbind(1))
            at_column = columns + context.columns.start
            values = (
                rows + first, torch.full_like(rows, context.step or 0), at_column - padding[rows],
                context.groups[: context.rows][picked].cpu(), context.canvas.cpu()[rows, at_column],
            )  # fmt: skip
            for name, value in zip(BESIDE, values, strict=True):
                held[name].append(value.to(torch.int32))
        vectors = activation[: context.rows][picked].flatten(1).to("cpu", dtype)
        if not bool(torch.isfinite(vectors).all()):
            raise ReadingError(
                f"Activations at {place} are too large for {dtype}; pass dtype=torch.float32 and another folder."
            )
        held[place].append(vectors)

    with hook(model, places, take):
        decode(model, ids, chosen, attention_mask=mask, history=False)
    write(last=True)


def _finished(folder: Path, first: int, digest: str) -> bool:
    """Whether all shards of the batch that begins with this prompt are there; of other prompts is an error."""
    for path in sorted(folder.glob(f"{first:08d}-*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
        if about.get("prompts") != digest:
            raise ReadingError(f"{path} holds activations of other prompts; name another folder.")
        if about.get("last") == "1":
            return True
    return False
