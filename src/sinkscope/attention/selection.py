"""Layers and heads that a user names: checked against the model when they are entered, and against what ran at the end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

from sinkscope.attention.listeners import Caught
from sinkscope.errors import SinkscopeError
from sinkscope.fields import NUMBERS, need


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


def numbers(name: str, value: Any, error: type[SinkscopeError]) -> tuple[int, ...] | None:
    """None, or whole numbers of at least 0 as a tuple."""
    if value is not None:
        value = tuple(value) if isinstance(value, Collection) and not isinstance(value, str | bytes) else value
        need(name, value, NUMBERS, error)
    found: tuple[int, ...] | None = value
    return found


def check(
    kind: str, chosen: Collection[int] | None, there: int | None, where: str, error: type[SinkscopeError]
) -> None:
    """Refuse a choice that the model does not have."""
    if chosen is None or there is None:
        return
    if missing := sorted(one for one in chosen if one >= there):
        raise error(f"Expected {kind} from 0 to {there - 1}, which {where} has, got {missing[0]}; choose among them.")


def check_seen(
    caught: Caught,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
    where: str,
    error: type[SinkscopeError],
) -> None:
    """For modules without a config: what was chosen must have been there when the module ran."""
    if not caught.calls:
        return
    if layers is not None and (missing := sorted(set(layers) - caught.layers)):
        there = ", ".join(map(str, sorted(caught.layers)))
        raise error(f"Expected layers that {where} has (it ran {there}), got {missing[0]}; choose among them.")
    check("heads", heads, caught.heads, where, error)
