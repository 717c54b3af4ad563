"""How attention calls are caught in someone else's module, and given back untouched when the `with` ends.

Models of transformers are caught through AttentionInterface *and* AttentionMaskInterface (with only the first, padding is
dropped). Of any other torch module the calls of scaled_dot_product_attention are caught while its forward runs.

Two kinds of state, kept apart. *Who listens* belongs to the context that entered the `with` (a contextvar): a forward of
another thread is neither heard nor changed. New threads start with an empty context, so a pool that is started inside a `with`
is not heard: enter the `with` in each thread. If the module ran only where nobody listened, the end of the `with` says so.
*What was put in* (hooks, the name of the attention function, a wrapped forward) belongs to the module: it is counted, and taken
out when the last `with` ends, in whatever order they end. A call that reaches us in a context where nobody listens runs the
module's own attention.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from sinkscope.attention.call import Call, CallResult, Tap, aligned, merge_changes, run_call
from sinkscope.attention.forward import running
from sinkscope.attention.reference import as_bias
from sinkscope.attention.tiled import single_query
from sinkscope.errors import CaptureError, SinkscopeError


@contextmanager
def patched(root: nn.Module, tap: Tap, layers: Collection[int] | None = None) -> Iterator[Listener]:
    """Send every attention call that this context makes inside `root` through `tap` until the `with` ends.

    Models of transformers are caught through their attention interface, any other module by its calls of SDPA.

    layers: those that the tap cares for; the others may be silent.
    """
    listener = Listener(tap, root)
    with ExitStack() as stack:
        stack.enter_context(_forwards.put(root, lambda: root.register_forward_pre_hook(_count_forward).remove))
        if any(is_transformers(part) for part in root.modules()):
            stack.enter_context(through_interface(root))
        if not is_native(root):
            stack.enter_context(through_sdpa(root))
        stack.enter_context(listed(listener))
        yield listener
    check_all_seen(listener, layers)


def _count_forward(root: nn.Module, *_: object) -> None:
    for one in listeners_at(root):
        one.forwards += 1


def check_all_seen(listener: Listener, layers: Collection[int] | None) -> None:
    """After a `with` that ended well: was everything seen that should have been?"""
    root, calls, name = listener.root, listener.calls, type(listener.root).__name__
    if len(calls) > 1:
        raise CaptureError(
            f"{name} calls attention in two ways, through transformers' interface ({calls['interface']} calls) and "
            f"directly ({calls['directly']}); observe the two parts in turn, each by its own module."
        )
    if listener.forwards and not calls:
        raise CaptureError(
            f"Expected attention calls inside {name}, caught none in {listener.forwards} forwards; flash-attention kernels, fully "
            "compiled graphs and hand-written softmax cannot be seen: run the module in eager mode with sdpa attention."
        )
    if listener.elsewhere and not calls:
        raise CaptureError(
            f"Expected {name} to run in the thread that entered this `with`, and it ran in others only; "
            "enter the `with` inside each thread."
        )
    expected = attention_layers(root) if layers is None else attention_layers(root) & set(layers)
    if calls["interface"] and expected and (skipped := sorted(expected - listener.layers)):
        raise CaptureError(
            f"Expected an attention call from each of {len(expected)} layers of {name}, and layers {skipped[:8]} made none; "
            "a layer without softmax attention cannot be observed: name the others with layers=…"
        )


def module_of(model: Any) -> nn.Module:
    """The torch module: itself, or the `.module` of whatever holds it."""
    if isinstance(model, nn.Module):
        return model
    inside = getattr(model, "module", None)
    if isinstance(inside, nn.Module):
        return inside
    raise CaptureError(
        f"Expected a torch module or a loaded model, got {type(model).__name__}; load one with sk.load(…)."
    )


class Shape(NamedTuple):
    """How many layers, heads and keys a module has, as far as its config says or its calls showed; None where neither does."""

    name: str
    layers: int | None
    heads: int | None
    keys: int | None = None

    @classmethod
    def of(cls, root: nn.Module) -> Shape:
        """What the config says."""
        config: Any = getattr(root, "config", None)
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()
        found = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
        layers, heads = (number if isinstance(number, int) else None for number in found)
        return cls(type(root).__name__, layers, heads)

    @classmethod
    def seen(cls, listener: Listener) -> Shape:
        """What the calls of a `with` showed; nothing if there were none."""
        layers = max(listener.layers, default=-1) + 1
        return cls(type(listener.root).__name__, layers or None, listener.heads or None, listener.keys or None)

    def check(self, layers: Collection[int] | None, heads: Collection[int] | None, error: type[SinkscopeError]) -> None:
        """Refuse a choice that the model does not have."""
        for kind, chosen, there in (("layers", layers, self.layers), ("heads", heads, self.heads)):
            if there is not None and (missing := sorted(one for one in chosen or () if one >= there)):
                raise error(
                    f"Expected {kind} from 0 to {there - 1}, which {self.name} has, got {missing[0]}; choose among them."
                )


# ---- who listens


@dataclass(eq=False)
class Listener:
    """One `with` at work, and what it saw of its module."""

    tap: Tap
    root: nn.Module
    is_open: bool = True  # a generator may end its `with` in another context, where it cannot be taken off the list
    thread: int | None = None
    elsewhere: int = 0  # calls of this module in contexts where nobody listens
    forwards: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by the way they came: "interface" or "directly"
    layers: set[int] = field(default_factory=set)
    heads: int = 0  # the most that a call had
    keys: int = 0

    def __post_init__(self) -> None:
        self.parts = frozenset(id(part) for part in self.root.modules())

    def note(self, way: str, layer: int, heads: int, keys: int) -> None:
        """A call was caught."""
        self.calls[way] += 1
        self.layers.add(layer)
        self.heads, self.keys = max(self.heads, heads), max(self.keys, keys)

    def claim(self) -> None:
        """What a tap remembers belongs to one generation at a time: the thread that calls first keeps it."""
        if self.thread is None:
            self.thread = threading.get_ident()
        elif self.thread != threading.get_ident():
            raise CaptureError(
                f"Expected one thread to run {type(self.root).__name__} inside this `with`, got a second (a copied "
                "context takes the `with` along); enter a `with` of its own in each thread."
            )


_active_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("sinkscope_listeners", default=())
_everywhere: list[Listener] = []
_lock = threading.RLock()


def listeners_of(part: nn.Module) -> list[Listener]:
    """Who listens to this part of a module in this context, outermost first."""
    found = [one for one in _active_listeners.get() if one.is_open and id(part) in one.parts]
    for one in found:
        one.claim()
    return found


def listeners_at(root: nn.Module) -> list[Listener]:
    """Who listens to exactly this module in this context."""
    return [one for one in listeners_of(root) if one.root is root]


def refuse_unseen(dropout: float) -> None:
    """Refuse what column sums cannot be of.

    A CUDA graph replays kernels without Python: nothing would be heard, and nothing changed, after the first time.
    """
    if dropout > 0:
        raise CaptureError(
            "Expected a module in evaluation mode, got one with active attention dropout; call .eval() first."
        )
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            "Expected a forward in eager mode, got one that is captured in a CUDA graph, whose replays call no Python; "
            "observe or change the module outside the graph."
        )


def anyone_listens() -> bool:
    """Whether this context listens to any module."""
    return any(one.is_open for one in _active_listeners.get())


def count_unseen_call(part: nn.Module) -> None:
    """A call was made where nobody listens: those who wait for it elsewhere may want to know."""
    for one in tuple(_everywhere):
        if id(part) in one.parts:
            one.elsewhere += 1


@contextmanager
def listed(listener: Listener) -> Iterator[None]:
    """The listener hears the calls of this context until the `with` ends."""
    _active_listeners.set((*_active_listeners.get(), listener))
    with _lock:
        _everywhere.append(listener)
    try:
        yield
    finally:
        listener.is_open = False
        with _lock:
            _everywhere.remove(listener)
        _active_listeners.set(tuple(one for one in _active_listeners.get() if one.is_open))


class SharedPatch:
    """Things put into objects that others own: the first who needs one puts it in, the last takes it out."""

    def __init__(self) -> None:
        self._there: dict[int, tuple[object, int, Callable[[], None]]] = {}

    @contextmanager
    def put(self, owner: object, put_in: Callable[[], Callable[[], None]]) -> Iterator[None]:
        """`put_in` does it and returns what undoes it."""
        with _lock:
            _, count, undo = self._there.get(id(owner)) or (owner, 0, put_in())
            self._there[id(owner)] = owner, count + 1, undo
        try:
            yield
        finally:
            with _lock:
                owner, count, undo = self._there.pop(id(owner))
                if count > 1:
                    self._there[id(owner)] = owner, count - 1, undo
                else:
                    undo()


_forwards, _configs, _wrappers = SharedPatch(), SharedPatch(), SharedPatch()

# ---- models of transformers

NAME = "sinkscope"
OWN = ("transformers.", "sinkscope.models.")
_original: dict[int, str] = {}  # id of a config → the implementation that it had before anyone listened


def is_transformers(part: nn.Module) -> bool:
    return hasattr(part, "config") and hasattr(part.config, "_attn_implementation")


def is_native(root: nn.Module) -> bool:
    """Whether the module is a class of transformers, or of ours, whose attention all goes through the interface."""
    return is_transformers(root) and type(root).__module__.startswith(OWN)


def attention_layers(root: nn.Module) -> set[int]:
    parts = (part for part in root.modules() if "Attention" in type(part).__name__)
    numbers = (getattr(part, "layer_idx", None) for part in parts)
    return {number for number in numbers if isinstance(number, int)}


@contextmanager
def through_interface(root: nn.Module) -> Iterator[None]:
    """Every attention call inside `root` comes to us until the last such `with` ends."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _uncompiled())
    AttentionMaskInterface.register(NAME, _mask)
    configs: list[Any] = list({id(one.config): one.config for one in root.modules() if is_transformers(one)}.values())
    with ExitStack() as stack:
        for config in configs:
            stack.enter_context(_configs.put(config, partial(_renamed, config)))
        yield


def _renamed(config: Any) -> Callable[[], None]:
    _original[id(config)] = config._attn_implementation
    _set_implementation(config, NAME)

    def undo() -> None:
        before = _original.pop(id(config))
        if config._attn_implementation == NAME:  # else someone chose another meanwhile, and that stays
            _set_implementation(config, before)

    return undo


def _set_implementation(config: Any, name: str) -> None:
    from transformers import PretrainedConfig

    # A plain name would go to all configs inside this one too; each of them is counted by itself.
    config._attn_implementation = {"": name} if isinstance(config, PretrainedConfig) else name


def _mask(*args: Any, **options: Any) -> Tensor | None:
    """The mask that the model's own attention would get where nobody listens, else one of 4 dimensions."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    name = _original.get(id(options.get("config")), "sdpa")
    own = name == "eager" or not anyone_listens()  # eager's float mask serves our attention as well
    make: Callable[..., Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[name] if own else sdpa_mask
    return make(*args, **options)


@cache
def _uncompiled() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Not as a decorator: it imports torch._dynamo, a second of CPU time even for showing a report."""
    found: Callable[..., tuple[Tensor, Tensor | None]] = torch.compiler.disable(_attention)
    return found


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    is_causal: bool | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What transformers calls in place of the model's own attention while someone, somewhere, listens."""
    listeners, forward = listeners_of(module), running()
    if not listeners or (forward is not None and forward.kind == "encode"):
        if not listeners:
            count_unseen_call(module)
        plain: tuple[Tensor, Tensor | None] = _implementation(module)(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **options
        )
        return plain
    for refused in ("softcap", "s_aux", "position_bias"):
        if options.get(refused) is not None:
            raise CaptureError(
                f"{type(module).__name__} uses attention with {refused}, whose column sums are not defined here."
            )
    refuse_unseen(options.get("dropout", 0.0) if module.training else 0.0)
    if query.dtype != value.dtype:  # a float32 rotary embedding promotes both
        query, key = query.to(value.dtype), key.to(value.dtype)
    directed = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = directed and attention_mask is None and query.shape[2] > 1
    layer = int(getattr(module, "layer_idx", 0) or 0)

    def untouched() -> Tensor:
        mask, own = _own_mask(module, attention_mask), _implementation(module)
        out: Tensor = own(module, query, key, value, mask, scaling=scaling, is_causal=is_causal, **options)[0]
        return out.transpose(1, 2)

    mask, causal = aligned(attention_mask, causal, query, key)
    own_key, cap = options.get("built_in"), options.get("cap")
    call = Call(layer, query, key, value, mask, causal, scaling, forward, untouched, directed, cap, own_key)
    for one in listeners:
        one.note("interface", layer, query.shape[1], key.shape[2])
    return run_call(call, [one.tap for one in listeners]).transpose(1, 2).contiguous(), None


def _own_mask(module: Any, mask: Tensor | None) -> Tensor | None:
    """The mask as the model's own attention reads it: flash-attention kernels take the real keys, [batch, key]."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

    name = implementation_of(module.config)
    if mask is None or mask.dim() != 4 or ALL_MASK_ATTENTION_FUNCTIONS[name] is not flash_attention_mask:
        return mask
    return mask.flatten(1, 2).any(1)


def implementation_of(config: Any) -> str:
    """The name of the attention that a model has, whether or not anyone listens to it now."""
    return _original.get(id(config)) or config._attn_implementation or "sdpa"


def padding_row(config: Any, mask: Tensor | None) -> Tensor | None:
    """A mask [batch, key] of bidirectional attention as [batch, 1, 1, key] where the model takes it so: one row for all queries.

    transformers would write it out for every pair of query and key. Left as it is for attention that reads other masks.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    layers = getattr(config, "layer_types", None)
    sees_all = set(layers) == {"full_attention"} if layers else getattr(config, "sliding_window", None) is None
    if mask is None or not sees_all or not hasattr(config, "_attn_implementation"):  # not a model of transformers
        return mask
    if ALL_MASK_ATTENTION_FUNCTIONS[implementation_of(config)] is not sdpa_mask:
        return mask
    return mask.bool()[:, None, None]


def _implementation(module: Any) -> Callable[..., Any]:
    """The attention function that the model had before anyone listened."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = implementation_of(module.config)
    if name == "sdpa" and _groups_single_queries.get():
        return _sdpa
    own: Any = sys.modules[type(module).__module__]
    found: Callable[..., Any] = own.eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
    return found


# ---- single queries in half precision on a CPU

_groups_single_queries: ContextVar[bool] = ContextVar("sinkscope_single_queries", default=False)


@contextmanager
def grouped_single_queries(root: nn.Module) -> Iterator[None]:
    """A query that stands alone goes through `single_query` where that is faster than SDPA: on a CPU, in half precision."""
    weight = next(root.parameters(), None)
    slow = weight is not None and weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16)
    if not slow or not is_native(root) or implementation_of(root.config) != "sdpa" or is_compiled(root):
        yield
        return
    token = _groups_single_queries.set(True)
    try:
        with through_interface(root):
            yield
    finally:
        _groups_single_queries.reset(token)


def is_compiled(root: nn.Module) -> bool:
    return any(getattr(part, "_compiled_call_impl", None) is not None for part in root.modules())


def _sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' SDPA, but for single queries."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # Nothing else changes what a single query sees: its order among the keys does not.
    known = options.keys() <= {
        "scaling",
        "is_causal",
        "dropout",
        "position_ids",
        "use_cache",
        "cache_position",
        "sliding_window",
    }
    if query.shape[2] == 1 and known and not module.training and (mask is None or mask.dtype == torch.bool):
        scale = options.get("scaling")
        return single_query(query, key, value, mask, scale).transpose(1, 2).contiguous(), None
    plain: tuple[Tensor, Tensor | None] = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **options)
    return plain


# ---- any other torch module

SIGNATURE = inspect.signature(functional.multi_head_attention_forward)


def through_sdpa(root: nn.Module) -> AbstractContextManager[None]:
    """Every attention call inside `root`'s forward comes to us until the last such `with` ends."""
    return _wrappers.put(root, partial(_wrapped, root))


def _wrapped(root: nn.Module) -> Callable[[], None]:
    before, own = vars(root).get("forward"), root.forward

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        catchers = (mode for mode in _get_current_function_mode_stack() if isinstance(mode, Catcher))
        if any(one.root is root for one in catchers):  # the module calls itself
            return own(*args, **kwargs)
        listeners = listeners_at(root)
        if not listeners:
            count_unseen_call(root)
            return own(*args, **kwargs)
        with Catcher(root, listeners):
            return own(*args, **kwargs)

    def undo() -> None:
        if vars(root).get("forward") is not forward:  # someone put another there meanwhile, and that stays
            return
        if before is None:
            del root.forward
        else:
            root.forward = before

    root.forward = forward
    return undo


class Catcher(TorchFunctionMode):
    """Sees every torch function while it is on, and takes over the attention calls of one forward."""

    def __init__(self, root: nn.Module, listeners: Sequence[Listener]) -> None:
        super().__init__()
        self.root, self.listeners, self.calls = root, listeners, 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and self.taps:
            return self._attention(func, *args, **kwargs)
        if func is functional.multi_head_attention_forward and self.taps:
            return self._multi_head(func, args, kwargs)
        return func(*args, **kwargs)

    def _attention(
        self, func: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        refuse_unseen(dropout_p)
        q, k, v = (part if part.dim() == 4 else part.reshape(-1, 1, *part.shape[-2:]) for part in (query, key, value))

        def untouched() -> Tensor:
            out = func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            return out.reshape(*q.shape[:-1], value.shape[-1])

        mask = attn_mask if attn_mask is None else attn_mask.reshape(*(1,) * (4 - attn_mask.dim()), *attn_mask.shape)
        call = Call(self.calls, q, k, v, *aligned(mask, is_causal, q, k), scale, running(), untouched, is_causal)
        self._count(q.shape[1], k.shape[2])
        return run_call(call, self.taps).reshape(*query.shape[:-1], value.shape[-1])

    def _multi_head(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """torch.nn.MultiheadAttention: it gives its weights when asked, which is all that a tap needs (it holds S × S).

        Its own weights are asked for, since its SDPA call is out of a mode's reach. Inputs are [position, batch, width].
        """
        bound = SIGNATURE.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        refuse_unseen(given["dropout_p"] if given["training"] else 0.0)
        query, key, heads = given["query"], given["key"], given["num_heads"]
        if query.dim() != 3 or given["bias_k"] is not None or given["add_zero_attn"]:
            raise CaptureError(
                "MultiheadAttention without a batch, or with bias_kv or zero attention, cannot be observed."
            )
        taps, layer = self.taps, self.calls
        self._count(heads, key.shape[0])
        (queries, batch), keys = query.shape[:2], key.shape[0]
        padded = given["key_padding_mask"]
        real = None if padded is None else (~padded if padded.dtype == torch.bool else padded >= 0)[:, None, None, :]
        shape = (batch, heads, queries, keys)
        call = Call(
            layer, query.new_empty(batch, heads, queries, 0), key.new_empty(batch, heads, keys, 0),
            key.new_empty(batch, heads, keys, 0), real, False, None, running(), lambda: torch.empty(0), bool(given["is_causal"]),
        )  # fmt: skip
        if any(tap.map_editors(call) for tap in taps):
            raise CaptureError(
                "Scores, patterns and results of heads are out of reach inside torch.nn.MultiheadAttention; hook another "
                "layer, or a model of transformers."
            )
        changes = [change for tap in taps for change in tap.change(call)]
        if not changes and not any(tap.needs_sums_fused(call) or tap.needs_sums(call) for tap in taps):
            for tap in taps:
                tap.done(call)
            return func(*args, **kwargs)
        if any(
            change.values or change.keys or change.extra or change.keep_self or change.temperature != 1
            for change in changes
        ):
            raise CaptureError(
                "Changed keys and values, extra keys and keep_self are not possible inside torch.nn.MultiheadAttention."
            )
        changed, drop, _ = merge_changes(call, changes)
        wanted, averaged = given["need_weights"], given["average_attn_weights"]
        asked = {**given, "need_weights": True, "average_attn_weights": False}
        clean = _column_sums(func(**asked)[1], call) if drop is not None else None
        if changes:
            asked["attn_mask"] = _with_hidden(given["attn_mask"], drop, changed.mask, shape)
        out, weights = func(**asked)
        received = _column_sums(weights, call)
        for tap in taps:
            tap.take(call, CallResult(received, received if clean is None else clean, drop, drop, changed.mask))
            tap.done(call)
        return out, (weights.mean(1) if averaged else weights) if wanted else None

    @property
    def taps(self) -> list[Tap]:
        return [one.tap for one in self.listeners if one.is_open]

    def _count(self, heads: int, keys: int) -> None:
        for one in self.listeners:
            if one.is_open:
                one.note("directly", self.calls, heads, keys)
        self.calls += 1


def _column_sums(weights: Tensor, call: Call) -> Tensor:
    """weights [batch, head, query, key] → received [batch, head, group, key]."""
    groups = torch.arange(call.group_count, device=weights.device)
    counted = (call.labels[:, None, :] == groups[None, :, None]).to(torch.float32)  # [batch, group, query]
    return torch.einsum("bgq,bhqk->bhgk", counted, weights.to(torch.float32).nan_to_num(0.0))


def _with_hidden(
    given: Tensor | None, drop: Tensor | None, may: Tensor | None, shape: tuple[int, int, int, int]
) -> Tensor:
    """MultiheadAttention's own mask, [batch × head, query, key] additive, with the dropped keys at −∞."""
    batch, heads, queries, keys = shape
    mask = torch.zeros(shape, device=(drop if drop is not None else may).device)  # type: ignore[union-attr]
    if given is not None:
        own = as_bias(~given, mask.dtype) if given.dtype == torch.bool else given
        mask = mask + (own if own.dim() == 2 else own.view(shape))
    if drop is not None:
        mask = mask.masked_fill(drop[:, :, None, :], -torch.inf)
    if may is not None:
        mask = mask.masked_fill(~may, -torch.inf)
    return mask.view(batch * heads, queries, keys)
