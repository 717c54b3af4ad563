"""Where activations are in a transformers decoder: the name of a place, and the part whose input or output it is.

resid_pre, resid_post: what enters and leaves a layer. attn_out, mlp_out: what is added to it. All [batch, position, width].
q, k, v: what the projections put out, before any rotary embedding. z: what the heads hand to the output projection. All
[batch, position, head, dim]. The names are TransformerLens's, whose "blocks.3.hook_resid_post" is understood too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sinkscope.errors import InterventionError

PLACES = ("resid_pre", "attn_out", "mlp_out", "resid_post", "q", "k", "v", "z")
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
    """The places that `where` names: of all layers ("resid_post"), of one ("layers.3.resid_post"), or a list of these."""
    names: Any = [where] if isinstance(where, str) else where
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise InterventionError(
            f'Expected a place such as "resid_post" or "layers.3.q", or a list of them, got {where!r}.'
        )
    layers = layers_of(root)
    found: dict[tuple[int, str], HookPlace] = {}
    for name in names:
        parsed = _NAMED.fullmatch(name)
        if parsed is None or parsed[3] not in PLACES:
            raise InterventionError(
                f'Expected a place among {", ".join(PLACES)}, alone or as "layers.3.{PLACES[3]}", got {name!r}.'
            )
        number, place = parsed[1] or parsed[2], parsed[3]
        if number is not None and int(number) >= len(layers):
            raise InterventionError(
                f"Expected layers from 0 to {len(layers) - 1}, which {type(root).__name__} has, got {name!r}; choose among them."
            )
        for one in range(len(layers)) if number is None else [int(number)]:
            found[one, place] = _place(layers[one], one, place)
    return list(found.values())


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
