"""Tensors on their way from a device to the host: collected over a step, packed there, and copied once.

A plain `.cpu()` makes the host wait until the device has caught up, layer after layer. Here the host goes on; what has
arrived is handed out when the next step is sent, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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

    The function must not keep the tensor itself: its memory is used again.
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
