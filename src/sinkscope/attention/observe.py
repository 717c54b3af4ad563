"""`observe`: what every key received, from any torch module, while the module runs as it always does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sinkscope.attention.calls import Call, Outcome, Tap
from sinkscope.attention.capture import Shape, listening, module_of
from sinkscope.attention.transfer import ToHost
from sinkscope.errors import CaptureError
from sinkscope.fields import NUMBERS, frozen, need

Keep = Callable[[int, Tensor], Tensor]


@dataclass
class Seen(Tap):
    """What `observe` saw; the lists run in step, one entry per call."""

    every: int = 1
    only: frozenset[int] | None = None
    keep: Keep | None = None
    layers: list[int] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)  # layer → calls so far, kept or not
    kept: list[Any] = field(default_factory=list)
    to_host: ToHost = field(default_factory=ToHost, repr=False)

    @property
    def received(self) -> list[Any]:
        """[batch, head, group, key] each, on the host, or what `keep` made of it; reading it waits for the device."""
        self.to_host.finish()
        return self.kept

    def watches(self, call: Call) -> bool:
        return (self.only is None or call.layer in self.only) and self.calls.get(call.layer, 0) % self.every == 0

    def done(self, call: Call) -> None:
        self.calls[call.layer] = self.calls.get(call.layer, 0) + 1

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
def observe(
    module: Any, every: int = 1, layers: Collection[int] | None = None, keep: Keep | None = None
) -> Iterator[Seen]:
    """Collect the attention that keys receive while `module` runs inside the `with`.

    module: any torch module, or a loaded model. every: only each n-th call of a layer. layers: only these. keep: a function
    (layer, received) → what to keep of it, on the device that made it. Inside sk.decode the groups are (masked, committed,
    prompt); elsewhere there is one group of all queries. Only calls of the thread that entered the `with` are seen.
    """
    if type(every) is not int or every < 1:
        raise CaptureError(f"Expected `every` to be a whole number of at least 1, got {every!r}.")
    chosen, root = frozen(layers), module_of(module)
    if chosen is not None:
        need("layers", chosen, NUMBERS, CaptureError)
    Shape.of(root).check(chosen, None, CaptureError)
    seen = Seen(every, None if chosen is None else frozenset(chosen), keep)
    with listening(root, seen, chosen) as listener:
        yield seen
    Shape.seen(listener).check(chosen, None, CaptureError)
