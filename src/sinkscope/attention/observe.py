"""`observe`: what every key received while a module runs as it always does, copied from the device a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.attention.call import Call, CallResult, Tap
from sinkscope.attention.maps import with_gradient
from sinkscope.attention.patch import Shape, module_of, patched
from sinkscope.errors import CaptureError
from sinkscope.validation import FromZero, validate

Keep = Callable[[int, Tensor], Tensor]
Use = Callable[[Tensor], object]
ALIGNED = 8  # bytes: every dtype may begin there
MOST = 1 << 28  # bytes that wait on the devices at a time
LAYERS = Annotated[tuple[FromZero, ...], Field(min_length=1)]


class HostCopy:
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


class HostCopies:
    """Each tensor is given to its function once it is on the host; at once if it is on the host.

    A plain `.cpu()` makes the host wait until the device has caught up, layer after layer. Here tensors are collected over a
    step, packed on the device and copied once, while the host goes on. What has arrived is handed out when the next step is
    sent, or at the end. The function must not keep the tensor itself: its memory is used again.
    """

    def __init__(self) -> None:
        self.waiting: dict[torch.device, tuple[list[Tensor], list[Use]]] = {}
        self.sent: list[HostCopy] = []
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
        before, self.sent = self.sent, [HostCopy(*some) for some in self.waiting.values()]
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
class Observation(Tap):
    """What `observe` saw; the lists run in step, one entry per call."""

    only: frozenset[int] | None = None
    keep: Keep | None = None
    layers: list[int] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    built_in: list[Tensor | None] = field(default_factory=list)  # what a key of the module's own received
    to_host: HostCopies = field(default_factory=HostCopies, repr=False)

    @property
    def received(self) -> list[Any]:
        """[batch, head, group, key] each, on the host, or what `keep` made of it; reading it waits for the device."""
        self.to_host.finish()
        return self.kept

    def needs_sums_fused(self, call: Call) -> bool:
        return self.only is None or call.layer in self.only

    def take(self, call: Call, result: CallResult) -> None:
        if not self.needs_sums_fused(call):
            return
        place, received = len(self.kept), result.received
        if result.needs_gradient and not received.requires_grad:
            received = with_gradient(received, call.inputs())
        self.kept.append(received if self.keep is None else self.keep(call.layer, received))
        if self.keep is None and received.device.type != "cpu" and not received.requires_grad:
            self.to_host.put(received, lambda arrived: self.kept.__setitem__(place, arrived.clone()))
        self.built_in.append(result.built_in)
        self.layers.append(call.layer)
        self.backends.append(call.backend)


@contextmanager
def observe(module: Any, layers: Collection[int] | None = None, keep: Keep | None = None) -> Iterator[Observation]:
    """Record the attention that keys receive while a module runs inside the `with` block.

    Received attention is summed over groups of queries: inside `sk.decode` over masked, committed and prompt positions,
    elsewhere over all queries. Only calls of the thread that entered the `with` block are recorded. With gradients
    enabled, they flow through received attention too.

    Args:
        module: Model, or any torch module with transformers' attention.
        layers: Layer indices to record; None for all.
        keep: Function `(layer, received)` that returns what to keep of a call's received attention [batch, head, group,
            key], on its device; the default keeps all of it, on the host.

    Returns:
        Observation whose `received` has one entry per attention call.
    """
    root = module_of(module)
    chosen = None if layers is None else validate(LAYERS, layers, "layers", CaptureError)
    Shape.of(root).check(chosen, None, CaptureError)
    seen = Observation(None if chosen is None else frozenset(chosen), keep)
    with patched(root, seen, chosen) as listener:
        yield seen
    Shape.seen(listener).check(chosen, None, CaptureError)
