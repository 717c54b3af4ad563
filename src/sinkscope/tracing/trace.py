"""`Trace`: what one generation left behind, step by step: received attention, canvas, confidence, commits, who sees whom."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import polars as pl
import torch
from torch import Tensor

from sinkscope.decoding.settings import Decode
from sinkscope.errors import SinkscopeError, TraceError
from sinkscope.sinks import HeadShare, Rule, Threshold
from sinkscope.sinks.rules import GROUPS, QUERY_GROUPS
from sinkscope.validation import show_value

if TYPE_CHECKING:
    from sinkscope.models.model import Model
    from sinkscope.tracing.heads import Classes
    from sinkscope.tracing.maps import MapOf
    from sinkscope.tracing.why import Why

Indices = slice | Sequence[int]
Part = Literal["answer", "rest", "all"]
# Values of one group worked on at once: 2 MB in fp32, which a core's cache holds; larger chunks are slower.
CHUNK = 1 << 19
ALL = slice(None)
# What counts as a sink, three times: the paper's Eq. 3 on column sums, and a tenth or three of what each query has to give.
DEFINITIONS: tuple[Rule, ...] = (Threshold(3.0), HeadShare(0.1), HeadShare(0.3))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use a single thread while a table is made, and as many as before when it is done.

    The chunks are small. On two idle cores a second thread gains little; on busy ones the threads wait for each other
    at every operation, and the same tables took 18 times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


single_threaded = _one_thread()  # a decorator


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """One generation; an autoregressive one has the same shape: one step per token, 0 at keys that are not there yet.

    A tensor's annotation has its dimensions, and its dtype if it is whole numbers.
    """

    received: Annotated[Tensor | None, "step layer head group key"]  # plain column sums; None in summary form
    layer_mean: Annotated[Tensor | None, "step layer group key"] = None  # summary form
    top_keys: Annotated[Tensor | None, "step layer head group top", torch.int32] = None
    top_scores: Annotated[Tensor | None, "step layer head group top"] = None
    # What a key that the model learned for each head received, which stands on no position; None: the model has none.
    built_in: Annotated[Tensor | None, "step layer head group"] = None
    queries: Annotated[Tensor, "step group", torch.int32]  # how many queries each group had
    # How many queries of each group might look at each key; None: all of them, at every key.
    seen: Annotated[Tensor | None, "step group key", torch.int32] = None
    canvas: Annotated[Tensor, "step+1 key", torch.int64]  # tokens before each forward, and the last
    confidence: Annotated[Tensor, "step key"]  # fp32, NaN where no candidate was looked at
    committed_at: Annotated[Tensor, "key", torch.int32]  # step of the last commit or edit, −1 for the prompt
    edits: Annotated[Tensor | None, "key", torch.int32] = None  # how often a token was replaced; None: never
    blocks: Annotated[Tensor, "step 2", torch.int32]  # first column of the active block, and the one after its last
    # On request: norms of values, and of the hidden state that enters each layer; attention of the heads in map_heads, with
    # each key's score, norm, score without positions and value norm.
    value_norms: Annotated[Tensor | None, "step layer kv_head key"] = None
    hidden_norms: Annotated[Tensor | None, "step layer key"] = None
    maps: Annotated[Tensor | None, "map step key key"] = None
    map_heads: tuple[tuple[int, int], ...] = ()
    mean_scores: Annotated[Tensor | None, "map key key"] = None  # before the softmax, over steps; NaN where never seen
    reasons: Annotated[Tensor | None, "map step 4 key"] = None
    # On request: what a layer would write there, and how sure it is; 0 where the step computed no row for the position.
    lens_tokens: Annotated[Tensor | None, "step layer choice key", torch.int32] = None
    lens_probability: Annotated[Tensor | None, "step layer choice key"] = None
    # On request: the largest channels behind each layer, and their values; 0 where the step computed none.
    channels: Annotated[Tensor | None, "step layer channel", torch.int32] = None
    channel_values: Annotated[Tensor | None, "step layer channel key"] = None
    prompt_length: int
    # The position behind the answer's first end-of-text, or behind its last content token; None: the end of the canvas.
    answer_end: int | None = None
    settings: Decode
    model: dict[str, Any]  # Model.identity()
    backend: str
    vocabulary: dict[int, tuple[str, str]]  # id → text shown, kind
    mask_id: int | None
    causal: bool
    prompt: str
    text: str
    interventions: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        size = f"{self.steps} steps × {self.layers} layers × {self.heads_count} heads × {self.positions} positions"
        changed = ", ".join(str(one.get("name")) for one in self.interventions)
        return f"Trace({self.model.get('name', 'model')}, {size}, {self.form}{f', {changed}' if changed else ''})"

    def _repr_html_(self) -> str:
        """A notebook's card: what was asked, what came, how large; `.show()` is the explorer."""
        rows = {
            "prompt": self.prompt.strip()[:300],
            "answer": self.text.strip()[:300] or "–",
            "changed by": ", ".join(str(one.get("name")) for one in self.interventions) or "nothing",
            "look at it": ".show() · .sinks() · .heads() · .tokens() · .to_frame()",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<p><b>{html.escape(repr(self))}</b></p><table>{cells}</table>"

    # ---- sizes

    @property
    def form(self) -> str:
        return "summary" if self.received is None else "full"

    @property
    def steps(self) -> int:
        return self.queries.shape[0]

    @property
    def layers(self) -> int:
        return self._scored.shape[1]

    @property
    def heads_count(self) -> int:
        return self._scored.shape[2]

    @property
    def positions(self) -> int:
        return self.canvas.shape[1]

    @property
    def _scored(self) -> Tensor:
        scored = self.top_scores if self.received is None else self.received
        if scored is None:
            raise TraceError("Expected a trace with received attention, full or in summary form, got one without.")
        return scored

    # ---- who sees whom

    def query_count(self, group: str = "all") -> Tensor:
        """How many queries of a group each step had, `[step]`."""
        return self.queries.sum(-1) if group == "all" else self.queries[:, QUERY_GROUPS.index(group)]

    def seen_by(self, group: str = "all") -> Tensor:
        """How many queries of a group might look at each key, `[step, key]`."""
        if self.seen is None:
            return self.query_count(group)[:, None].expand(-1, self.positions)
        return self.seen.sum(1) if group == "all" else self.seen[:, QUERY_GROUPS.index(group)]

    def alive(self) -> Tensor:
        """Which keys exist at each step, `[step, key]` bool: those that some query might look at."""
        if self.seen is None:
            return torch.ones(self.steps, self.positions, dtype=torch.bool)
        return self.seen.any(1)

    def rule_columns(self, group: str = "all") -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What rules take beside column sums: queries [step]; keys that exist, and queries that see each, [step, key] both.

        Rules are faster where they are told (by None) that every key exists and every query sees it.
        """
        if self.seen is None:
            return self.query_count(group), None, None
        return self.query_count(group), self.alive(), self.seen_by(group)

    # ---- parts

    def part_steps(self, part: Part = "all") -> slice:
        """The steps of a part of the generation.

        "answer": all up to the last step before which some position of the answer, its end-of-text included, is still to be
        written. "rest": all later ones, in which what stands behind the answer's end is filled.
        """
        if part not in get_args(Part):
            raise TraceError(f"Expected a part of the generation among {', '.join(get_args(Part))}, got {part!r}.")
        if part == "all":
            return slice(0, self.steps)
        answer = slice(self.prompt_length, self.answer_end)
        if self.mask_id is None:  # no token says that a position is open
            unwritten = self.committed_at[answer] >= torch.arange(self.steps)[:, None]
        else:
            unwritten = self.canvas[:-1, answer] == self.mask_id
        last = int((unwritten.any(1) * torch.arange(1, self.steps + 1)).max())
        return slice(0, last) if part == "answer" else slice(last, self.steps)

    def part(self, part: Part) -> Trace:
        """The trace over the steps of a part (see `part_steps`), which are numbered from 0."""
        steps = self.part_steps(part)
        if steps.start == steps.stop:
            raise TraceError(f"Expected steps in part {part!r}, and this trace has none there; look at part='all'.")
        return self if part == "all" else self.select(steps=steps)

    def select(self, steps: slice | None = None, layers: Indices | None = None, heads: Indices | None = None) -> Trace:
        """A part of the trace; steps as a slice without stride, layers and heads in any choice (renumbered)."""
        steps = slice(None) if steps is None else steps
        try:
            first, last, stride = steps.indices(self.steps)
        except (AttributeError, TypeError):
            first, last, stride = 0, 0, 0
        if stride != 1 or last <= first:
            raise TraceError(f"Expected a slice of steps within 0 and {self.steps}, without stride, got {steps}.")
        cut: dict[str, Any] = {
            name: tensor[first:last] for name in BY_STEP if (tensor := getattr(self, name)) is not None
        }
        if layers is not None:
            some = resolve_indices("layers", layers, self.layers)
            cut |= {name: cut[name][:, some] for name in BY_LAYER if name in cut}
        if heads is not None:
            some = resolve_indices("heads", heads, self.heads_count)
            cut |= {name: cut[name][:, :, some] for name in BY_HEAD if name in cut}
            cut["value_norms"] = None  # kept by kv head, which query heads share
        return replace(
            self, **cut, canvas=self.canvas[first : last + 1], maps=None, map_heads=(), reasons=None,
            mean_scores=None, committed_at=(self.committed_at - first).clamp(min=-1),
        )  # fmt: skip

    def cumulative(self, least: int = 4) -> Trace:
        """An autoregressive trace seen as a whole map grows: at each step the columns of all rows so far.

        One step of an ARM is one row, one step of a diffusion model is a whole map. Rows alone would call any key that one row
        looks at a flash. Early keys are seen by more rows, so each column is the mean over the rows that see its key. Keys that
        fewer than `least` rows have seen are not judged yet: they do not exist here.
        """
        if not self.causal:
            raise TraceError(
                "Columns so far are of an autoregressive trace; a diffusion model has a whole map per step."
            )
        rows, seen, scores = self.query_count(), self.seen_by(), self.sums("all")
        if bool((rows < self.alive().sum(1)).any()):  # else a step has all rows so far, not one
            rows, seen, scores = rows.cumsum(0), seen.cumsum(0), scores.cumsum(0)
        whole = torch.zeros(*scores.shape[:3], len(QUERY_GROUPS), scores.shape[3])
        whole[..., 1, :] = scores / seen.clamp(min=1)[:, None, None] * rows[:, None, None, None]
        none = torch.zeros_like(rows)
        queries = torch.stack([none, rows, none], -1)
        return replace(self, received=whole, queries=queries, seen=queries[..., None] * (seen >= least)[:, None])

    # ---- columns of attention

    def scores(self, group: str = "all", unit: str = "sum") -> Tensor:
        """What each key received from a group of queries, [step, layer, head, key] fp32.

        unit: "sum" column sums; "mean" divided by the number of queries; "percent" 100 × that. In summary form the top
        keys are exact and what is left of the attention is spread evenly over the others.
        """
        if group not in GROUPS:
            raise TraceError(f"Expected a group of queries among {', '.join(GROUPS)}, got {group!r}.")
        if unit not in ("sum", "mean", "percent"):
            raise TraceError(f"Expected the unit sum, mean or percent, got {unit!r}.")
        sums = self.sums(group)
        if unit == "sum":
            return sums
        return sums / self.query_count(group).clamp(min=1)[:, None, None, None] * (100 if unit == "percent" else 1)

    def sums(self, group: str, layers: slice = ALL) -> Tensor:
        """Column sums of these layers, [step, layer, head, key] fp32."""
        first, *others = range(len(QUERY_GROUPS)) if group == "all" else [QUERY_GROUPS.index(group)]
        # Added one by one: twice as fast as `.float().sum(axis)`.
        sums = self._group(first, layers).to(torch.float32, copy=True)
        for other in others:
            sums += self._group(other, layers)
        return sums

    def _group(self, group: int, layers: slice) -> Tensor:
        if self.received is not None:
            return self.received[:, layers, :, group]
        assert self.top_keys is not None and self.top_scores is not None
        keys, top = self.top_keys[:, layers, :, group].long(), self.top_scores[:, layers, :, group].float()
        alive = self.alive()  # [step, key]
        total = self.queries[:, group].float()[:, None, None]
        if self.built_in is not None:
            total = total - self.built_in[:, layers, :, group].float()
        rest = (total - top.sum(-1)).clamp(min=0) / (alive.sum(1) - top.shape[-1]).clamp(min=1)[:, None, None]
        return (rest.unsqueeze(-1) * alive[:, None, None]).scatter(-1, keys, top)

    def columns_by_layer(self, *groups: str) -> Iterator[tuple[slice, list[Tensor]]]:
        """Column sums `[step, layer, head, key]` fp32 of the groups asked for, a few layers at a time."""
        if self.steps == 0 or self.positions == 0:
            raise TraceError(
                f"Expected a trace with at least one step, got {self.steps} steps over {self.positions} positions: generate "
                "at least one token."
            )
        step = max(1, CHUNK // max(1, self.steps * self.heads_count * self.positions))
        for start in range(0, self.layers, step):
            layers = slice(start, min(start + step, self.layers))
            columns = [self.sums(group, layers) for group in groups]
            for group, values in zip(groups, columns, strict=True):
                # The sum is NaN or infinite if one value is, and needs no copy of the scores.
                if not bool(torch.isfinite(values.sum())):
                    raise TraceError(
                        f"Received attention must be finite, but layer {start} or one just above has NaN or infinite scores "
                        f"(group {group}): record the trace again in fp32."
                    )
            yield layers, columns

    def marks_by_layer(self, rule: Rule, *others: str) -> Iterator[tuple[slice, Tensor, Tensor, list[Tensor]]]:
        """Layers, scores in the rule's unit and sinks, and column sums of its group and others, [step, layer, head, key] each."""
        columns = self.rule_columns(rule.group)
        for layers, sums in self.columns_by_layer(rule.group, *others):
            yield layers, rule.scores(sums[0], *columns), rule.marks(sums[0], *columns), sums

    # ---- tables

    @property
    def default_rule(self) -> Rule:
        """The paper's epsilon = 3: column sums, or multiples of the uniform share where a step has one row or block only."""
        one_block = self.seen is not None and bool((self.query_count() < self.alive().sum(-1)).any())
        return Threshold(3.0, unit="uniform" if self.causal or one_block else "sum")

    def to_frame(self, group: str = "all", unit: str = "sum") -> pl.DataFrame:
        """What each key received, a row per step, layer, head and key that exists: position, id, token, kind, received.

        group, unit: as of `scores`. Rows are steps × layers × heads × positions; `select` first where that is too many.
        """
        from sinkscope.tracing.sinks import received

        return received(self, group, unit)

    def sinks(self, rule: Rule | None = None, *, epsilon: float | None = None, part: Part = "all") -> pl.DataFrame:
        """Every sink: step, layer, head, position, token, kind, score, unit.

        epsilon: of the default rule, in its unit. part: see `part_steps`.
        """
        from sinkscope.tracing.sinks import find

        if epsilon is not None:
            if rule is not None:
                raise TraceError("Expected a rule or an epsilon, got both; leave one out.")
            rule = replace(self.default_rule, epsilon=epsilon)  # type: ignore[call-arg]
        table = find(self.part(part), check_rule(rule))
        return table.with_columns(pl.col("step") + self.part_steps(part).start)

    def built_in_key(self) -> pl.DataFrame:
        """The model's own key by step, layer and head: what it received, and its share of all attention.

        It is counted apart from tokens: no other table has it.
        """
        from sinkscope.tracing.sinks import built_in

        return built_in(self)

    def heads(
        self, rule: Rule | Sequence[Rule] | None = None, classes: Classes | None = None, *, part: Part = "all"
    ) -> pl.DataFrame:
        """One row per head: how its sinks behave over the steps, and what class that makes it.

        rule: several, such as `DEFINITIONS`, give each head a row for every one, with the column `definition`. part: see
        `part_steps`.
        """
        from sinkscope.tracing.heads import head_dynamics

        trace = self.part(part)
        if rule is None or isinstance(rule, Rule):
            return head_dynamics(trace, rule, classes)
        tables = [
            head_dynamics(trace, check_rule(one), classes).with_columns(definition=pl.lit(one.definition))
            for one in rule
        ]
        return pl.concat(tables)

    def tokens(self, rule: Rule | None = None, *, part: Part = "all") -> pl.DataFrame:
        """Which tokens the sinks are, and how much oftener than such tokens occur. part: see `part_steps`."""
        from sinkscope.tracing.sinks import token_shares

        return token_shares([self.part(part)], check_rule(rule))

    def outliers(self, rule: Rule | None = None) -> pl.DataFrame:
        """A row per layer and channel: in which share of steps it is among the largest, and its size at sinks and elsewhere.

        Of a trace that kept channels (`Keep(channels=8)`). Sizes are root mean squares over the steps in which it is kept. A
        position counts as a sink of a layer's output where it is one in any head of the next layer, whose keys are made of it
        (of the last layer: in its own heads). Of a causal trace the prompt is looked at, and a position that is a sink at any
        step.
        """
        from sinkscope.tracing.states import outlier_channels

        return outlier_channels(self, check_rule(rule))

    def why(self, step: int, layer: int, head: int, key: int, model: Model) -> Why:
        """Why this key draws attention there: norm or angle, content or place, which layers made it; against matched keys.

        model: the one that made the trace; the step is computed once more with it.
        """
        from sinkscope.tracing.why import why

        return why(self, model, step, layer, head, key)

    # ---- averages of maps

    def mean_map(self, layer: int | None = None, head: int | None = None, *, of: MapOf = "pattern") -> Tensor:
        """The mean map over steps, [layer, head, query, key]; without the axes of the layer and head that are named.

        Of a trace that kept maps (`Keep(maps="all")`). of: "pattern" after the softmax, "scores" before it, where NaN stands
        at keys that a query never saw. A step counts for the queries that it computed.
        """
        from sinkscope.tracing.maps import mean_map

        return mean_map(self, layer, head, of)

    def by_distance(self, layer: int | None = None, head: int | None = None) -> pl.DataFrame:
        """Attention against distance: a row per layer, head and distance key − query, with the mean weight of such pairs.

        Of a trace that kept maps (`Keep(maps="all")`). share: of all that the head gave; pairs: how many pairs there were.
        """
        from sinkscope.tracing.maps import by_distance

        return by_distance(self, layer, head)

    def to_cache(self, step: int) -> dict[str, Tensor]:
        """The maps of one step under TransformerLens's names: "blocks.3.attn.hook_pattern" → [1, head, query, key] fp32.

        Of the layers of which every head's map was kept (`Keep(maps="all")`).
        """
        from sinkscope.tracing.maps import to_cache

        return to_cache(self, step)

    def str_tokens(self, step: int) -> list[str]:
        """The tokens on the canvas before a step, as texts: what viewers of maps write beside them."""
        from sinkscope.tracing.maps import check_step

        tokens = self.canvas[check_step(self, step)].tolist()
        return [self.vocabulary.get(token, (f"#{token}", ""))[0] for token in tokens]

    # ---- out and in

    def show(self) -> Any:
        """The explorer of this trace: in a notebook as a frame, elsewhere as a page in a temporary file."""
        from sinkscope.report.writing import show

        return show(self)

    def save(self, path: str | Path) -> Path:
        """Write the trace as one safetensors file (to a temporary name, then renamed)."""
        from sinkscope.tracing.files import save

        return save(self, _path(path))

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a trace; tensors are mapped from the file, so that only what is used is read."""
        from sinkscope.tracing.files import load

        return load(_path(path))


def find_answer_end(canvas: Tensor, start: int, ends: set[int | None], kind_of: Callable[[int], str]) -> int:
    """Of the last canvas [position]: the position behind the first end-of-text from `start` on, else behind the last content."""
    from sinkscope.sinks.kinds import STRUCTURAL

    kinds = ["end" if token in ends else kind_of(token) for token in canvas[start:].tolist()]
    if "end" in kinds:
        return start + kinds.index("end") + 1
    return max((start + place + 1 for place, kind in enumerate(kinds) if kind not in STRUCTURAL), default=start)


def resolve_indices(name: str, chosen: Any, count: int, error: type[SinkscopeError] = TraceError) -> list[int]:
    """Numbers out of `count`, from a slice or a sequence; None is all of them, negative ones count from the end."""
    if chosen is None:
        return list(range(count))
    several = chosen
    if isinstance(chosen, slice):
        several = range(count)[chosen]
    elif isinstance(chosen, Tensor):
        several = chosen.tolist()
    whole = isinstance(several, Sequence) and bool(several) and all(type(one) is int for one in several)
    if not whole or any(not -count <= one < count for one in several):
        raise error(f"Expected {name} from {-count} to {count - 1}, at least one, got {show_value(chosen, 60)}.")
    return [one % count for one in several]


def check_rule(rule: Rule | None) -> Rule | None:
    if rule is not None and not isinstance(rule, Rule):
        raise TraceError(f'Expected a sink rule, such as sk.Threshold(3, unit="sum"), got {rule!r}.')
    return rule


def _path(path: str | Path) -> Path:
    if not isinstance(path, str | Path):
        raise TraceError(f"Expected the path of a trace's file, got {path!r}.")
    return Path(path)


# Tensor of a trace → its dimensions; the same word is the same size in all of them. Numbers are sizes that are known.
# WHOLE: those of whole numbers.
HINTS = get_type_hints(Trace, include_extras=True)
_TENSORS = {name: hint.__metadata__ for name, hint in HINTS.items() if get_origin(hint) is Annotated}
_KNOWN = {"group": len(QUERY_GROUPS), "2": 2, "4": 4}
SHAPES = {name: tuple(_KNOWN.get(word, word) for word in words.split()) for name, (words, *_) in _TENSORS.items()}
WHOLE: dict[str, torch.dtype] = {name: dtype for name, (_, *dtypes) in _TENSORS.items() for dtype in dtypes}
BY_STEP = [name for name, shape in SHAPES.items() if shape[0] == "step"]
BY_LAYER = [name for name in BY_STEP if "layer" in SHAPES[name]]
BY_HEAD = [name for name in BY_LAYER if "head" in SHAPES[name]]
