"""How attention calls are caught in someone else's module, and given back untouched when the `with` ends.

Threads: a `with` hears and changes the calls of the context that entered it, and no others. New threads start with an
empty context, so a pool that is started inside a `with` is not heard: enter the `with` in each thread. If the module ran
only where nobody listened, the end of the `with` says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from sinkscope.attention.calls import Tap
from sinkscope.attention.interface import attention_layers, is_native, is_transformers, through_interface
from sinkscope.attention.listeners import Caught, Listener, listed
from sinkscope.attention.sdpa import through_sdpa
from sinkscope.errors import CaptureError, SinkscopeError


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
def listening(root: nn.Module, tap: Tap, layers: Collection[int] | None = None) -> Iterator[Caught]:
    """Send every attention call that this context makes inside `root` through `tap` until the `with` ends.

    layers: those that the tap cares for; the others may be silent.
    """
    listener = Listener(tap, root)
    with ExitStack() as stack:
        if any(is_transformers(part) for part in root.modules()):
            stack.enter_context(through_interface(root))
        if not is_native(root):
            stack.enter_context(through_sdpa(root))
        stack.enter_context(listed(listener))
        yield listener.caught
    _complain(listener, layers)


def _complain(listener: Listener, layers: Collection[int] | None) -> None:
    """After a `with` that ended well: was everything seen that should have been?"""
    root, caught = listener.root, listener.caught
    name = type(root).__name__
    if caught.through_interface and caught.through_sdpa:
        raise CaptureError(
            f"{name} calls attention in two ways, through transformers' interface ({caught.through_interface} calls) and "
            f"directly ({caught.through_sdpa}); observe the two parts in turn, each by its own module."
        )
    if caught.forwards and not caught.calls:
        raise CaptureError(
            f"Expected attention calls inside {name}, caught none in {caught.forwards} forwards; flash-attention kernels, fully "
            "compiled graphs and hand-written softmax cannot be seen: run the module in eager mode with sdpa attention."
        )
    if listener.elsewhere and not caught.calls:
        raise CaptureError(
            f"Expected {name} to run in the thread that entered this `with`, and it ran in others only; "
            "enter the `with` inside each thread."
        )
    expected = attention_layers(root) if layers is None else attention_layers(root) & set(layers)
    if caught.through_interface and expected and (skipped := sorted(expected - caught.layers)):
        raise CaptureError(
            f"Expected an attention call from each of {len(expected)} layers of {name}, and layers {skipped[:8]} made none; "
            "a layer without softmax attention cannot be observed: name the others with layers=…"
        )


@dataclass(frozen=True)
class Shape:
    """How many layers and heads a module has, as far as its config says; None where it does not."""

    name: str
    layers: int | None
    heads: int | None

    @classmethod
    def of(cls, root: nn.Module) -> Shape:
        config: Any = getattr(root, "config", None)
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()
        layers, heads = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
        whole = [number if isinstance(number, int) else None for number in (layers, heads)]
        return cls(type(root).__name__, whole[0], whole[1])

    def check(self, layers: Collection[int] | None, heads: Collection[int] | None, error: type[SinkscopeError]) -> None:
        """Refuse a choice that the model does not have."""
        for kind, chosen, there in (("layers", layers, self.layers), ("heads", heads, self.heads)):
            if there is not None and (missing := sorted(one for one in chosen or () if one >= there)):
                raise error(
                    f"Expected {kind} from 0 to {there - 1}, which {self.name} has, got {missing[0]}; choose among them."
                )

    def check_seen(
        self, caught: Caught, layers: Collection[int] | None, heads: Collection[int] | None, error: type[SinkscopeError]
    ) -> None:
        """For modules without a config: what was chosen must have been there when the module ran."""
        if not caught.calls:
            return
        if missing := sorted(set(layers or ()) - caught.layers):
            there = ", ".join(map(str, sorted(caught.layers)))
            raise error(f"Expected layers that {self.name} has (it ran {there}), got {missing[0]}; choose among them.")
        Shape(self.name, None, caught.heads).check(None, heads, error)
