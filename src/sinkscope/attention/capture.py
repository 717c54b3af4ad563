"""How attention calls are caught in someone else's module, and given back untouched when the `with` ends.

Threads: a `with` hears and changes the calls of the context that entered it, and no others. New threads start with an
empty context, so a pool that is started inside a `with` is not heard: enter the `with` in each thread. If the module ran
only where nobody listened, the end of the `with` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sinkscope.attention.calls import Call, Outcome, Tap
from sinkscope.attention.interface import attention_layers, is_native, is_transformers, through_interface
from sinkscope.attention.listeners import Counted, Listener, listed, listeners_at
from sinkscope.attention.sdpa import through_sdpa
from sinkscope.errors import CaptureError, SinkscopeError
from sinkscope.fields import NUMBERS, frozen, need

_forwards = Counted()


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


@contextmanager
def listening(root: nn.Module, tap: Tap, layers: Collection[int] | None = None) -> Iterator[Listener]:
    """Send every attention call that this context makes inside `root` through `tap` until the `with` ends.

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
    _complain(listener, layers)


def _count_forward(root: nn.Module, *_: object) -> None:
    for one in listeners_at(root):
        one.forwards += 1


def _complain(listener: Listener, layers: Collection[int] | None) -> None:
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


# ---- `observe`: what every key received, while the module runs as it always does ----

Keep = Callable[[int, Tensor], Tensor]
Use = Callable[[Tensor], object]
ALIGNED = 8  # bytes: every dtype may begin there
MOST = 1 << 28  # bytes that wait on the devices at a time


class Parcel:
    """What one device sends in one copy."""

    def __init__(self, tensors: list[Tensor], uses: list[Use]) -> None:
        self.uses, self.likes = uses, [(one.dtype, one.shape) for one in tensors]
        rows = [_bytes(one) for one in tensors]
        packed = torch.cat(rows)
        self.sizes = [len(row) for row in rows]
        self.host = torch.empty(len(packed), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        self.host.copy_(packed, non_blocking=True)
        self.arrived = torch.cuda.Event()
        self.arrived.record(torch.cuda.current_stream(tensors[0].device) if torch.cuda.is_available() else None)

    def open(self) -> None:
        self.arrived.synchronize()
        for (dtype, shape), use, row in zip(self.likes, self.uses, self.host.split(self.sizes), strict=True):
            use(row[: shape.numel() * dtype.itemsize].view(dtype).view(shape))


class ToHost:
    """Each tensor is given to its function once it is on the host; at once if it is on the host.

    A plain `.cpu()` makes the host wait until the device has caught up, layer after layer. Here tensors are collected over a
    step, packed on the device and copied once, while the host goes on. What has arrived is handed out when the next step is
    sent, or at the end. The function must not keep the tensor itself: its memory is used again.
    """

    def __init__(self) -> None:
        self.waiting: dict[torch.device, tuple[list[Tensor], list[Use]]] = {}
        self.sent: list[Parcel] = []
        self.bytes = 0

    def put(self, tensor: Tensor, use: Use) -> None:
        if tensor.device.type != "cuda":
            use(tensor.cpu())
            return
        tensors, uses = self.waiting.setdefault(tensor.device, ([], []))
        tensors.append(tensor)
        uses.append(use)
        self.bytes += tensor.nbytes
        if self.bytes > MOST:
            self.send()

    def send(self) -> None:
        """Begin to copy what was put since the last time, and hand out what was sent then."""
        before, self.sent = self.sent, [Parcel(*some) for some in self.waiting.values()]
        self.waiting, self.bytes = {}, 0
        for parcel in before:
            parcel.open()

    def finish(self) -> None:
        """Wait for everything that is on its way."""
        self.send()
        self.send()


def _bytes(tensor: Tensor) -> Tensor:
    """The numbers as bytes, filled up to whole multiples of 8."""
    row = tensor.contiguous().view(-1).view(torch.uint8)
    return torch.nn.functional.pad(row, (0, -len(row) % ALIGNED)) if len(row) % ALIGNED else row


@dataclass
class Seen(Tap):
    """What `observe` saw; the lists run in step, one entry per call."""

    only: frozenset[int] | None = None
    keep: Keep | None = None
    layers: list[int] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    to_host: ToHost = field(default_factory=ToHost, repr=False)

    @property
    def received(self) -> list[Any]:
        """[batch, head, group, key] each, on the host, or what `keep` made of it; reading it waits for the device."""
        self.to_host.finish()
        return self.kept

    def watches(self, call: Call) -> bool:
        return self.only is None or call.layer in self.only

    def take(self, call: Call, outcome: Outcome) -> None:
        if not self.watches(call):
            return
        place, received = len(self.kept), outcome.received
        self.kept.append(received if self.keep is None else self.keep(call.layer, received))
        if self.keep is None and received.device.type != "cpu":
            self.to_host.put(received, lambda arrived: self.kept.__setitem__(place, arrived.clone()))
        self.layers.append(call.layer)
        self.backends.append(call.backend)


@contextmanager
def observe(module: Any, layers: Collection[int] | None = None, keep: Keep | None = None) -> Iterator[Seen]:
    """Collect the attention that keys receive while `module` runs inside the `with`.

    module: any torch module, or a loaded model. layers: only these. keep: a function
    (layer, received) → what to keep of it, on the device that made it. Inside sk.decode the groups are (masked, committed,
    prompt); elsewhere there is one group of all queries. Only calls of the thread that entered the `with` are seen.
    """
    chosen, root = frozen(layers), module_of(module)
    if chosen is not None:
        need("layers", chosen, NUMBERS, CaptureError)
    Shape.of(root).check(chosen, None, CaptureError)
    seen = Seen(None if chosen is None else frozenset(chosen), keep)
    with listening(root, seen, chosen) as listener:
        yield seen
    Shape.seen(listener).check(chosen, None, CaptureError)
