"""`hook`: look at activations while a model runs, or replace them, and know at which step of the generation that is.

resid_pre, resid_post: what enters and leaves a layer. attn_out, mlp_out: what is added to it. All [batch, position, width].
q, k, v: what the projections put out, before any rotary embedding. z: what the heads hand to the output projection. All
[batch, position, head, dim]. scores: what goes into the softmax, −∞ where a query may not look. pattern: the softmax of
that. Both [batch, head, query, key], computed for the layers that are named only. head_out: pattern times values, [batch,
head, query, dim]. The names are TransformerLens's, whose "blocks.3.hook_resid_post" is understood too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sinkscope.attention.call import Call, CallResult, Change, Tap
from sinkscope.attention.forward import COMMITTED, MASKED, PROMPT, Forward, running
from sinkscope.attention.maps import MAP_PLACES, Edit, Editors
from sinkscope.attention.patch import Shape, SharedPatch, is_native, listeners_of, module_of, patched
from sinkscope.errors import InterventionError
from sinkscope.interventions.memory import Memory
from sinkscope.sinks.rules import Threshold

SINKS = Threshold(3.0, unit="uniform")  # what trace.sinks() takes, in the unit that also fits a single row or block
LEAST_ROWS = 4  # a key of a causal model is judged once so many rows have seen it
_inputs, _outputs = SharedPatch(), SharedPatch()
PLACES = ("resid_pre", "attn_out", "mlp_out", "resid_post", "q", "k", "v", "z")
THEIR_MAPS = {"attn_scores": "scores"}  # TransformerLens's name → ours, where they differ
_NAMED = re.compile(r"(?:layers\.(\d+)\.|blocks\.(\d+)\.(?:attn\.)?hook_)?(\w+)", re.ASCII)


@dataclass(frozen=True, eq=False)
class HookPlace:
    """One place of one layer."""

    layer: int
    name: str
    part: nn.Module
    before: bool  # what goes into the part; else what comes out
    dim: int | None  # size of a head where the place is split into heads

    def split(self, activation: Tensor) -> Tensor:
        """[batch, position, width], or [batch, position, head, dim] where the place has heads."""
        return activation if self.dim is None else activation.unflatten(-1, (-1, self.dim))


def find_places(root: nn.Module, where: str | Sequence[str]) -> list[HookPlace]:
    """The activations that `where` names: of all layers ("resid_post"), of one ("layers.3.resid_post"), or a list of these."""
    layers = layers_of(root)
    found: dict[tuple[int, str], HookPlace] = {}
    for name, number, place in _parse_places(where, PLACES):
        _check_layer(root, name, number, len(layers))
        for one in range(len(layers)) if number is None else [number]:
            found[one, place] = _place(layers[one], one, place)
    return list(found.values())


def _parse_places(where: Any, known: Sequence[str]) -> list[tuple[str, int | None, str]]:
    """What `where` names: each name as it was given, its layer (None: all) and its place."""
    names: Any = [where] if isinstance(where, str) else where
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise InterventionError(
            f'Expected a place such as "resid_post" or "layers.3.q", or a list of them, got {where!r}.'
        )
    found = []
    for name in names:
        parsed = _NAMED.fullmatch(name)
        place = None if parsed is None else parsed[3] if parsed[2] is None else THEIR_MAPS.get(parsed[3], parsed[3])
        if parsed is None or place is None or place not in known:
            raise InterventionError(
                f'Expected a place among {", ".join(known)}, alone or as "layers.3.{PLACES[3]}", got {name!r}.'
            )
        number = parsed[1] or parsed[2]
        found.append((name, None if number is None else int(number), place))
    return found


def _check_layer(root: nn.Module, name: str, number: int | None, layers: int | None) -> None:
    """Refuse a layer that the model does not have; layers: how many it has, None where nobody knows."""
    if number is not None and layers is not None and number >= layers:
        raise InterventionError(
            f"Expected layers from 0 to {layers - 1}, which {type(root).__name__} has, got {name!r}; choose among them."
        )


class MapPlace(NamedTuple):
    """A tensor inside the attention call of one layer, or of all (None)."""

    layer: int | None
    name: str


def find_map_places(root: nn.Module, where: Sequence[str]) -> list[MapPlace]:
    """The scores, patterns and results of heads that `where` names."""
    found = []
    for name, number, place in _parse_places(where, MAP_PLACES):
        _check_layer(root, name, number, Shape.of(root).layers)
        found.append(MapPlace(number, place))
    return list(dict.fromkeys(found))


def _split_where(where: Any) -> tuple[list[str], list[str]]:
    """Names of activations, and names of tensors inside attention."""
    parsed = _parse_places(where, (*PLACES, *MAP_PLACES))
    activations = [name for name, _, place in parsed if place in PLACES]
    maps = [name for name, _, place in parsed if place in MAP_PLACES]
    return activations, maps


def layers_of(root: nn.Module) -> nn.ModuleList:
    """The list of decoder layers inside a module, whatever wraps it."""
    lists = [
        part
        for name, part in root.named_modules()
        if isinstance(part, nn.ModuleList) and name.rpartition(".")[2] == "layers" and len(part)
    ]
    if len(lists) != 1:
        raise InterventionError(
            f"Expected a decoder with one list of layers, and {type(root).__name__} has {len(lists) or 'none'}; "
            "use torch's own hooks there."
        )
    return lists[0]


def _place(layer: nn.Module, number: int, name: str) -> HookPlace:
    if name in ("resid_pre", "resid_post"):
        return HookPlace(number, name, layer, name == "resid_pre", None)
    # Where a layer norms what it adds (Gemma, OLMo 2), the place is behind that norm.
    normed = hasattr(layer, "post_feedforward_layernorm")
    paths = {
        "attn_out": "post_attention_layernorm" if normed else "self_attn",
        "mlp_out": "post_feedforward_layernorm" if normed else "mlp",
        **{part: f"self_attn.{part}_proj" for part in "qkv"}, "z": "self_attn.o_proj",
    }  # fmt: skip
    part: Any = layer
    for step in paths[name].split("."):
        part = getattr(part, step, None)
    dim = getattr(getattr(layer, "self_attn", None), "head_dim", None) if len(name) == 1 else None
    if part is None or (len(name) == 1 and not isinstance(dim, int)):
        raise InterventionError(
            f"Expected {paths[name]} in each layer for the place {name}, and layer {number} "
            f"({type(layer).__name__}) has none; choose another place."
        )
    return HookPlace(number, name, part, name == "z", dim)


@dataclass(frozen=True, eq=False)
class HookContext:
    """State of the generation that a hook's function gets with the activation.

    Outside sinkscope's decoders only `place` and `layer` are known; the other attributes are None.

    Args:
        place: Name of the place.
        layer: Layer index.
        forward: State of sinkscope's decoder.
        step: Denoising step; for an autoregressive model the number of tokens generated so far.
        share: Progress of the generation (0 to 1): the step divided by the largest number of steps that the settings
            allow.
        kind: "denoise", or "prefill" and "store" for forwards that only fill a cache.
        columns: Columns of the canvas that the positions stand for: a slice, or int [batch, position] if a cache
            computes single columns.
        rows: Number of sequences that count; with guidance the second half of the batch is the unconditional copy.
        groups: Group of each position, int [batch, position]: 0 masked, 1 committed, 2 prompt, -1 padding.
        canvas: Token ids during this forward [batch, column].
    """

    place: str
    layer: int
    forward: Forward | None = field(repr=False)
    _hooked: Hooked = field(repr=False)
    step: int | None
    share: float | None
    kind: str | None
    columns: Any
    rows: int | None
    groups: Tensor | None = field(repr=False)
    canvas: Tensor | None = field(repr=False)

    @classmethod
    def of(cls, place: str, layer: int, hooked: Hooked) -> HookContext:
        """Return the context of the forward that is running now.

        Args:
            place: Name of the place.
            layer: Layer index.
            hooked: Active hook.
        """
        forward = running()
        if forward is None:
            return cls(place, layer, None, hooked, None, None, None, slice(0, None), None, None, None)
        span = slice(forward.start, forward.start + forward.labels.shape[1])
        columns = span if forward.columns is None else forward.columns
        known = forward.step, forward.share, forward.kind, columns, forward.rows, forward.labels, forward.ids
        return cls(place, layer, forward, hooked, *known)

    @property
    def masked(self) -> Tensor | None:
        """Positions with a mask token, bool [batch, position]."""
        return self._group(MASKED)

    @property
    def committed(self) -> Tensor | None:
        """Positions generated by the model, bool [batch, position]."""
        return self._group(COMMITTED)

    @property
    def prompt(self) -> Tensor | None:
        """Positions of the prompt, bool [batch, position]."""
        return self._group(PROMPT)

    def _group(self, group: int) -> Tensor | None:
        return None if self.groups is None else self.groups == group

    @property
    def sinks(self) -> Tensor | None:
        """Sinks of the previous step in any head of this layer, bool [batch, column]; None at the first step.

        Sinks are computed only for a function that reads this attribute: read it in every call, from the first two
        steps on.
        """
        found = self.head_sinks
        return None if found is None else found.any(1)

    @property
    def head_sinks(self) -> Tensor | None:
        """Sinks of the previous step in each head of this layer, bool [batch, head, column]; None at the first step."""
        return self._hooked.sinks(self.layer, self.forward)


Function = Callable[[Tensor, HookContext], Tensor | None]


@dataclass
class Hooked(Tap):
    """One `with` of `hook`."""

    function: Function
    places: dict[tuple[int, bool], HookPlace]  # by the id of the part, and whether it is the part's input
    maps: Sequence[MapPlace] = ()
    memory: Memory = field(default_factory=Memory)
    # Layer → bool [batch, head, column] by step, of the last two: behind the attention, this step's are there already.
    marks: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    run: object = None  # the generation in which someone asked for sinks

    def act(self, place: HookPlace, activation: Tensor) -> Tensor | None:
        """What stands in the activation's place; None for itself."""
        given = place.split(activation)
        made = self._call(given, place.name, place.layer)
        return None if made is None or made is given else made.reshape(activation.shape)

    def _call(self, given: Tensor, place: str, layer: int) -> Tensor | None:
        """What the function makes of a tensor, checked; in the dtype and on the device of the tensor."""
        made: Any = self.function(given, HookContext.of(place, layer, self))
        if made is None or made is given:
            return given if made is given else None
        if not isinstance(made, Tensor) or made.shape != given.shape:
            came = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise InterventionError(
                f"Expected None or a tensor of shape {tuple(given.shape)} from the hook at {place} of layer {layer}, got "
                f"{came}."
            )
        return made.to(given)

    def map_editors(self, call: Call) -> Editors:
        """The function, at those tensors of this call that are places of it."""
        return {
            place.name: self._editor(place.name, call.layer)
            for place in self.maps
            if place.layer is None or place.layer == call.layer
        }

    def _editor(self, place: str, layer: int) -> Edit:
        return lambda tensor: self._call(tensor, place, layer)

    def sinks(self, layer: int, forward: Forward | None) -> Tensor | None:
        if forward is None:
            return None
        if self.run is not forward.run and forward.step > 1:
            raise InterventionError(
                "Sinks of the last step are ranked only while a hook asks for them, and this one asked for the first time at "
                f"step {forward.step}; read context.sinks in every call, from the first step on."
            )
        self.run = forward.run
        found = self.marks.get(layer, {}).get(forward.step - 1)
        if found is None or forward.ids is None:
            return found
        return torch.nn.functional.pad(found, (0, forward.ids.shape[1] - found.shape[-1]))

    def change(self, call: Call) -> list[Change]:
        self.memory.open(call)
        return []

    def needs_sums(self, call: Call) -> bool:
        """The first step always, since a hook behind the attention asks too late for it; the others where someone asks."""
        forward = call.forward
        return forward is not None and forward.kind == "denoise" and (forward.step == 0 or self.run is forward.run)

    def take(self, call: Call, outcome: CallResult) -> None:
        forward = call.forward
        if forward is None or not self.needs_sums(call):
            return
        self.memory.keep(call, outcome, {("as_run", "all")})
        received = self.memory.scores(call, "as_run", "all")
        assert received is not None
        queries = self.memory.queries(call)[:, None]
        alive = torch.ones_like(received, dtype=torch.bool) if call.real_keys is None else call.real_keys[:, None]
        if call.directed:  # early keys are seen by more rows: each column counts as the mean of those
            seen = self.memory.seen(call)[:, None]
            received, alive = received / seen.clamp(min=1) * queries[..., None], alive & (seen >= LEAST_ROWS)
        kept = self.marks.setdefault(call.layer, {})
        kept[forward.step] = SINKS.marks(received, queries, alive)
        kept.pop(forward.step - 2, None)

    def done(self, call: Call) -> None:
        self.memory.close(call)


@contextmanager
def hook(model: Any, where: str | Sequence[str], function: Function) -> Iterator[Hooked]:
    """Call a function with activations while a model runs inside the `with` block.

    Several hooks at one place act in the order in which they were entered; at scores and patterns each gets what active
    interventions made of them. Only forwards of the thread that entered the `with` block are seen. With gradients
    enabled, they flow through what the function gets; scores and patterns are then computed as whole maps.

    Args:
        model: Model, or any torch module with a list of decoder layers.
        where: Place, or list of places: "resid_post" for all layers, "layers.3.resid_post" for one. Places are
            resid_pre, attn_out, mlp_out, resid_post [batch, position, width]; q, k, v, z [batch, position, head, dim];
            scores, pattern [batch, head, query, key]; and head_out [batch, head, query, dim].
        function: Function `(activation, context)` that returns a tensor to replace the activation, or None to leave it
            unchanged. `context` is a `HookContext`. Under a cache the positions are those of `context.columns`.
    """
    if not callable(function):
        raise InterventionError(f"Expected a function (activation, context) → activation or None, got {function!r}.")
    given = module_of(model)
    root = next((part for part in given.modules() if is_native(part)), given)  # inside PEFT and other wrappers
    activations, inside = _split_where(where)
    places = find_places(root, activations) if activations else []
    maps = find_map_places(root, inside) if inside else []
    hooked = Hooked(function, {(id(place.part), place.before): place for place in places}, maps)
    with ExitStack() as stack:
        for place in places:
            stack.enter_context((_inputs if place.before else _outputs).put(place.part, partial(_put, place)))
        listener = stack.enter_context(patched(root, hooked))
        yield hooked
    seen = Shape.seen(listener).layers
    for layer, name in maps:
        _check_layer(root, f"layers.{layer}.{name}", layer, seen)


def _put(place: HookPlace) -> Callable[[], None]:
    if place.before:
        return place.part.register_forward_pre_hook(_before, with_kwargs=True).remove
    return place.part.register_forward_hook(_after).remove


def _before(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0] if args else kwargs.get("hidden_states")
    made = _apply_taps(part, True, first)
    if made is first:
        return None
    return ((made, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": made})


def _after(part: nn.Module, args: Any, output: Any) -> Any:
    first = output[0] if isinstance(output, tuple) else output
    made = _apply_taps(part, False, first)
    if made is first:
        return None
    return (made, *output[1:]) if isinstance(output, tuple) else made


def _apply_taps(part: nn.Module, before: bool, activation: Any) -> Any:
    """What all who listen here make of it; where nobody listens (a torch hook stands there for all threads), it stays itself."""
    for one in listeners_of(part):
        if isinstance(one.tap, Hooked) and (place := one.tap.places.get((id(part), before))) is not None:
            made = one.tap.act(place, activation)
            activation = activation if made is None else made
    return activation
