"""Who listens to which module, and what was put into the module for it.

Two kinds of state, kept apart. *Who listens* belongs to the context that entered the `with` (a contextvar): a forward of
another thread is neither heard nor changed. *What was put in* (hooks, the name of the attention function) belongs to the
module: it is counted, and taken out when the last `with` ends, in whatever order they end. A call that reaches us in a
context where nobody listens runs the module's own attention.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import nn

from sinkscope.attention.calls import Tap
from sinkscope.errors import CaptureError


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


_here: ContextVar[tuple[Listener, ...]] = ContextVar("sinkscope_listeners", default=())
_everywhere: list[Listener] = []
_lock = threading.RLock()


def listeners_of(part: nn.Module) -> list[Listener]:
    """Who listens to this part of a module in this context, outermost first."""
    found = [one for one in _here.get() if one.is_open and id(part) in one.parts]
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
    return any(one.is_open for one in _here.get())


def unheard(part: nn.Module) -> None:
    """A call was made where nobody listens: those who wait for it elsewhere may want to know."""
    for one in tuple(_everywhere):
        if id(part) in one.parts:
            one.elsewhere += 1


@contextmanager
def listed(listener: Listener) -> Iterator[None]:
    """The listener hears the calls of this context until the `with` ends."""
    _here.set((*_here.get(), listener))
    with _lock:
        _everywhere.append(listener)
    try:
        yield
    finally:
        listener.is_open = False
        with _lock:
            _everywhere.remove(listener)
        _here.set(tuple(one for one in _here.get() if one.is_open))


class Counted:
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
