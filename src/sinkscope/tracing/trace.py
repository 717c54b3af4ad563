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
    """Recorded generation of one prompt.

    An autoregressive generation has the same form as a diffusion one: one step per token, with 0 at keys that do not
    exist yet. The type of a tensor names its dimensions.

    Args:
        received: Column sums of attention; None in summary form.
        layer_mean: Mean received attention of each layer; summary form only.
        top_keys: Most-attended keys of each head; summary form only.
        top_scores: Attention received by `top_keys`; summary form only.
        built_in: Attention received by the learned key in front of all positions; None if the model has none.
        queries: Number of queries of each group.
        seen: Number of queries of each group that may attend to each key; None if all may attend to every key.
        canvas: Token ids before each forward, and at the end.
        confidence: Confidence in the candidates, NaN where there was none.
        committed_at: Step at which each position was last committed or edited, -1 for the prompt.
        edits: Number of times that each token was replaced; None if none was.
        blocks: First column of the active block, and the column after its last.
        value_norms: Norms of values, if recorded.
        hidden_norms: Norms of the hidden states that enter each layer, if recorded.
        maps: Attention maps of the heads in `map_heads`, if recorded.
        map_heads: Pairs of layer and head of `maps`.
        mean_scores: Scores before the softmax of the heads in `map_heads`, averaged over steps; NaN for pairs that
            never occurred.
        reasons: Score, norm, score without positions and value norm of each key, for the heads in `map_heads`.
        lens_tokens: Likeliest tokens of each layer at each position (logit lens), if recorded; 0 where the step
            computed none.
        lens_probability: Probabilities of `lens_tokens`.
        channels: Largest channels after each layer, if recorded.
        channel_values: Values of `channels`; 0 where the step computed none.
        prompt_length: Number of tokens of the prompt.
        answer_end: Position after the answer's first end-of-text, or after its last content token; None for the end of
            the canvas.
        settings: Decode settings.
        model: Identity of the model (`Model.identity`).
        backend: Name of the attention implementation.
        vocabulary: Text and token category of each token id that occurs.
        mask_id: Token id of the mask token; None for an autoregressive model.
        causal: Whether the model is autoregressive.
        prompt: Text of the prompt.
        text: Text of the answer.
        interventions: Interventions that were active, as plain data.
    """

    received: Annotated[Tensor | None, "step layer head group key"]
    layer_mean: Annotated[Tensor | None, "step layer group key"] = None
    top_keys: Annotated[Tensor | None, "step layer head group top", torch.int32] = None
    top_scores: Annotated[Tensor | None, "step layer head group top"] = None
    built_in: Annotated[Tensor | None, "step layer head group"] = None
    queries: Annotated[Tensor, "step group", torch.int32]
    seen: Annotated[Tensor | None, "step group key", torch.int32] = None
    canvas: Annotated[Tensor, "step+1 key", torch.int64]
    confidence: Annotated[Tensor, "step key"]
    committed_at: Annotated[Tensor, "key", torch.int32]
    edits: Annotated[Tensor | None, "key", torch.int32] = None
    blocks: Annotated[Tensor, "step 2", torch.int32]
    value_norms: Annotated[Tensor | None, "step layer kv_head key"] = None
    hidden_norms: Annotated[Tensor | None, "step layer key"] = None
    maps: Annotated[Tensor | None, "map step key key"] = None
    map_heads: tuple[tuple[int, int], ...] = ()
    mean_scores: Annotated[Tensor | None, "map key key"] = None
    reasons: Annotated[Tensor | None, "map step 4 key"] = None
    lens_tokens: Annotated[Tensor | None, "step layer choice key", torch.int32] = None
    lens_probability: Annotated[Tensor | None, "step layer choice key"] = None
    channels: Annotated[Tensor | None, "step layer channel", torch.int32] = None
    channel_values: Annotated[Tensor | None, "step layer channel key"] = None
    prompt_length: int
    answer_end: int | None = None
    settings: Decode
    model: dict[str, Any]
    backend: str
    vocabulary: dict[int, tuple[str, str]]
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
        """Form of the trace, "full" or "summary"."""
        return "summary" if self.received is None else "full"

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.queries.shape[0]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self._scored.shape[1]

    @property
    def heads_count(self) -> int:
        """Number of heads per layer."""
        return self._scored.shape[2]

    @property
    def positions(self) -> int:
        """Number of positions of the canvas."""
        return self.canvas.shape[1]

    @property
    def _scored(self) -> Tensor:
        scored = self.top_scores if self.received is None else self.received
        if scored is None:
            raise TraceError("Expected a trace with received attention, full or in summary form, got one without.")
        return scored

    # ---- who sees whom

    def query_count(self, group: str = "all") -> Tensor:
        """Return the number of queries of a group at each step, [step].

        Args:
            group: Group of queries: "all", "masked", "committed" or "prompt".
        """
        return self.queries.sum(-1) if group == "all" else self.queries[:, QUERY_GROUPS.index(group)]

    def seen_by(self, group: str = "all") -> Tensor:
        """Return the number of queries of a group that may attend to each key, [step, key].

        Args:
            group: Group of queries.
        """
        if self.seen is None:
            return self.query_count(group)[:, None].expand(-1, self.positions)
        return self.seen.sum(1) if group == "all" else self.seen[:, QUERY_GROUPS.index(group)]

    def alive(self) -> Tensor:
        """Return which keys exist at each step, bool [step, key]: those that some query may attend to."""
        if self.seen is None:
            return torch.ones(self.steps, self.positions, dtype=torch.bool)
        return self.seen.any(1)

    def rule_columns(self, group: str = "all") -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return what sink rules need besides column sums.

        Rules are faster if they get None, which means that every key exists and every query may attend to it.

        Args:
            group: Group of queries.

        Returns:
            Number of queries [step], keys that exist [step, key] or None, and number of queries that may attend to each
                key [step, key] or None.
        """
        if self.seen is None:
            return self.query_count(group), None, None
        return self.query_count(group), self.alive(), self.seen_by(group)

    # ---- parts

    def part_steps(self, part: Part = "all") -> slice:
        """Return the steps of a part of the generation.

        Args:
            part: "answer" for all steps up to the one that completes the answer, its end-of-text included; "rest" for
                later steps, which fill positions after the answer; "all".
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
        """Return the trace of a part of the generation, with steps numbered from 0.

        Args:
            part: Part, as in `part_steps`.
        """
        steps = self.part_steps(part)
        if steps.start == steps.stop:
            raise TraceError(f"Expected steps in part {part!r}, and this trace has none there; look at part='all'.")
        return self if part == "all" else self.select(steps=steps)

    def select(self, steps: slice | None = None, layers: Indices | None = None, heads: Indices | None = None) -> Trace:
        """Return a part of the trace, with steps, layers and heads numbered from 0.

        Args:
            steps: Slice of steps, without stride; None for all.
            layers: Layer indices; None for all.
            heads: Head indices; None for all.
        """
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
        """Return an autoregressive trace in which each step has the mean over all queries so far.

        One step of an autoregressive model is one query, one step of a diffusion model a whole map; with single
        queries, any key attended to once would count as a sink. Each key's column is the mean over the queries that may
        attend to it.

        Args:
            least: Number of queries below which a key is treated as missing.
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
        """Return the attention that each key receives from a group of queries, float32 [step, layer, head, key].

        In summary form the most-attended keys are exact, and the remaining attention is spread evenly over the others.

        Args:
            group: Group of queries: "all", "masked", "committed" or "prompt".
            unit: "sum" for column sums, "mean" for column sums divided by the number of queries, "percent" for 100
                times the mean.
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
        """Return the column sums of some layers, float32 [step, layer, head, key].

        Args:
            group: Group of queries.
            layers: Slice of layers.
        """
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
        """Iterate over column sums of several groups, a few layers at a time.

        Args:
            *groups: Groups of queries.

        Yields:
            Slice of layers, and the column sums of each group, float32 [step, layer, head, key].
        """
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
        """Iterate over scores and sinks, a few layers at a time.

        Args:
            rule: Sink rule.
            *others: Further groups of queries.

        Yields:
            Slice of layers, scores in the rule's unit, sinks, and column sums of the rule's group and of the others,
                each [step, layer, head, key].
        """
        columns = self.rule_columns(rule.group)
        for layers, sums in self.columns_by_layer(rule.group, *others):
            yield layers, rule.scores(sums[0], *columns), rule.marks(sums[0], *columns), sums

    # ---- tables

    @property
    def default_rule(self) -> Rule:
        """Sink rule of the paper with epsilon 3, in column sums, or in multiples of uniform attention if a step has
        only one query or block.
        """
        one_block = self.seen is not None and bool((self.query_count() < self.alive().sum(-1)).any())
        return Threshold(3.0, unit="uniform" if self.causal or one_block else "sum")

    def to_frame(self, group: str = "all", unit: str = "sum") -> pl.DataFrame:
        """Return received attention as a table with a row per step, layer, head and existing key.

        The number of rows is steps times layers times heads times positions; use `select` first for large traces.

        Args:
            group: Group of queries, as in `scores`.
            unit: Unit, as in `scores`.
        """
        from sinkscope.tracing.sinks import received

        return received(self, group, unit)

    def sinks(self, rule: Rule | None = None, *, epsilon: float | None = None, part: Part = "all") -> pl.DataFrame:
        """Return a table of all sinks, with step, layer, head, position, token, token category, score and unit.

        Args:
            rule: Sink rule; None for `default_rule`.
            epsilon: Threshold of the default rule, in its unit.
            part: Part of the generation, as in `part_steps`.
        """
        from sinkscope.tracing.sinks import find

        if epsilon is not None:
            if rule is not None:
                raise TraceError("Expected a rule or an epsilon, got both; leave one out.")
            rule = replace(self.default_rule, epsilon=epsilon)  # type: ignore[call-arg]
        table = find(self.part(part), check_rule(rule))
        return table.with_columns(pl.col("step") + self.part_steps(part).start)

    def built_in_key(self) -> pl.DataFrame:
        """Return a table of the learned key by step, layer and head, with the attention that it received and its
        fraction of all attention.

        No other table includes this key.
        """
        from sinkscope.tracing.sinks import built_in

        return built_in(self)

    def heads(
        self, rule: Rule | Sequence[Rule] | None = None, classes: Classes | None = None, *, part: Part = "all"
    ) -> pl.DataFrame:
        """Return a table with a row per head: how its sinks behave over the steps, and its class.

        Args:
            rule: Sink rule, or several, each with its own rows and the column `definition`; None for `default_rule`.
            classes: Thresholds of the classes; None for the defaults.
            part: Part of the generation, as in `part_steps`.
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
        """Return a table of the tokens that are sinks, with how much more often they are sinks than their frequency
        suggests.

        Args:
            rule: Sink rule; None for `default_rule`.
            part: Part of the generation, as in `part_steps`.
        """
        from sinkscope.tracing.sinks import token_shares

        return token_shares([self.part(part)], check_rule(rule))

    def outliers(self, rule: Rule | None = None) -> pl.DataFrame:
        """Return a table with a row per layer and channel: the fraction of steps in which it is among the largest, and
        its size at sinks and elsewhere.

        The trace must have channels (`Keep(channels=8)`). Sizes are root mean squares over the steps in which the
        channel is recorded. A position counts as a sink of a layer's output if it is one in any head of the next layer
        (for the last layer: in its own heads). Of a causal trace only the prompt is used.

        Args:
            rule: Sink rule; None for `default_rule`.
        """
        from sinkscope.tracing.states import outlier_channels

        return outlier_channels(self, check_rule(rule))

    def why(self, step: int, layer: int, head: int, key: int, model: Model) -> Why:
        """Explain why a key receives attention: norm or angle, content or position, and which layers contribute,
        compared with matched keys.

        The step is computed again with the model.

        Args:
            step: Step.
            layer: Layer index.
            head: Head index.
            key: Position of the key.
            model: Model that made the trace.
        """
        from sinkscope.tracing.why import why

        return why(self, model, step, layer, head, key)

    # ---- averages of maps

    def mean_map(self, layer: int | None = None, head: int | None = None, *, of: MapOf = "pattern") -> Tensor:
        """Return attention maps averaged over steps, [layer, head, query, key].

        The trace must have maps (`Keep(maps="all")`). A step counts for the queries that it computed.

        Args:
            layer: Layer index, which removes this dimension; None for all.
            head: Head index, which removes this dimension; None for all.
            of: "pattern" for probabilities, "scores" for scores before the softmax, NaN for pairs that never occurred.
        """
        from sinkscope.tracing.maps import mean_map

        return mean_map(self, layer, head, of)

    def by_distance(self, layer: int | None = None, head: int | None = None) -> pl.DataFrame:
        """Return a table of mean attention by layer, head and distance (key minus query).

        The trace must have maps (`Keep(maps="all")`). The column `share` is the fraction of the head's attention,
        `pairs` the number of pairs.

        Args:
            layer: Layer index; None for all.
            head: Head index; None for all.
        """
        from sinkscope.tracing.maps import by_distance

        return by_distance(self, layer, head)

    def to_cache(self, step: int) -> dict[str, Tensor]:
        """Return the maps of one step under TransformerLens's names, such as "blocks.3.attn.hook_pattern", each float32
        [1, head, query, key].

        Only layers of which every head's map was recorded are included (`Keep(maps="all")`).

        Args:
            step: Step.
        """
        from sinkscope.tracing.maps import to_cache

        return to_cache(self, step)

    def str_tokens(self, step: int) -> list[str]:
        """Return the texts of the tokens on the canvas before a step.

        Args:
            step: Step.
        """
        from sinkscope.tracing.maps import check_step

        tokens = self.canvas[check_step(self, step)].tolist()
        return [self.vocabulary.get(token, (f"#{token}", ""))[0] for token in tokens]

    # ---- out and in

    def show(self) -> Any:
        """Show the explorer of this trace: as a frame in a notebook, elsewhere as a page in a temporary file."""
        from sinkscope.report.writing import show

        return show(self)

    def save(self, path: str | Path) -> Path:
        """Write the trace as one safetensors file.

        Args:
            path: Path of the file.
        """
        from sinkscope.tracing.files import save

        return save(self, _path(path))

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a trace; tensors are mapped from the file and read when they are used.

        Args:
            path: Path of the file.
        """
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
