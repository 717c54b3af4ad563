"""Forwards under a policy that decides layer by layer which columns are computed, and keeps the outputs of all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sinkscope.attention.forward import forward_context, running
from sinkscope.attention.patch import padding_row
from sinkscope.decoding.caches.forwards import PolicyForwards, positions_of
from sinkscope.decoding.caches.keeping import DLLMCache
from sinkscope.decoding.caches.policy import Span
from sinkscope.errors import DecodeError
from sinkscope.models.model import Model

PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


class LayerForwards(PolicyForwards):
    """Runs the layers of a Llama or Qwen one by one, each on the columns that it needs."""

    policy: DLLMCache

    def __init__(self, model: Model, policy: DLLMCache, shift: bool) -> None:
        super().__init__(model, policy, shift)
        base: Any = model.module.base_model
        if not all(hasattr(layer, part) for layer in base.layers for part in PARTS):
            raise DecodeError(
                f"{policy.name} runs layers of Llama's form one by one, and those of {model.name} have another; choose "
                "another cache."
            )
        self.outputs: dict[tuple[str, int], Tensor] = {}  # of attention and MLP by layer, [batch, column, width]

    def plan(self, block: Span, columns: int) -> None:
        self.begin(block)
        self.span = (0, columns)

    def __call__(self, tokens: Tensor, real: Tensor | None, span: Span, keep: bool = False) -> Tensor:
        self.window(span, tokens.shape[1])
        base: Any = self.model.module.base_model
        hidden = base.embed_tokens(tokens)
        positions = self._positions(tokens, real).expand(len(tokens), -1)
        rotary = base.rotary_emb(hidden, positions)
        mask = padding_row(base.config, None if real is None else real.to(torch.int64))
        maps: list[Tensor] = []
        for number in range(len(self.layers)):
            self.step.layer = number
            hidden, due = self.run_layer(number, hidden, rotary, mask)
            maps.append(due)
        computed = torch.stack([one.cpu() for one in maps])
        self.step.looks += int(bool(computed.all()))
        self.end(float(computed.float().mean()), lambda: computed)
        normed: Tensor = base.norm(hidden)
        return normed

    def run_layer(
        self, number: int, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """hidden [batch, column, width] → the same behind the layer, and which columns it computed."""
        base: Any = self.model.module.base_model
        layer, canvas, first = base.layers[number], self.require_canvas(), self.step.forward == 0
        normed = layer.input_layernorm(hidden)
        self.step.similarity = None if first else self.compare_values(number, layer, normed)
        due = True if first else self.policy.due(canvas, self.step)
        flags = torch.ones_like(canvas.real) if due is True else due
        assert isinstance(flags, Tensor)
        if not bool(flags.any()):
            return hidden + self.outputs["attention", number] + self.outputs["mlp", number], flags
        columns = positions_of(flags).to(hidden.device)
        attention = self.attend(number, layer, take(normed, columns), columns, rotary, mask)
        hidden = hidden + self.keep_output("attention", number, attention, columns, hidden)
        mlp = layer.mlp(layer.post_attention_layernorm(take(hidden, columns)))
        return hidden + self.keep_output("mlp", number, mlp, columns, hidden), flags

    def compare_values(self, number: int, layer: Any, normed: Tensor) -> Tensor | None:
        """Values of the columns that the policy names, computed and kept; how similar they are to those kept before."""
        named = self.policy.compared_values(self.require_canvas(), self.step)
        if named is None:
            return None
        store, places = self.layers[number], named.nonzero().flatten().to(normed.device)
        fresh = layer.self_attn.v_proj(normed[:, places])
        values = store.values
        before = values[:, :, places].transpose(1, 2).flatten(2)
        similarity = torch.ones(normed.shape[:2], device=normed.device)
        similarity[:, places] = cosine_similarity(fresh.float(), before.float(), dim=-1)
        heads, dim = values.shape[1], values.shape[-1]
        values[:, :, places] = fresh.unflatten(2, (heads, dim)).transpose(1, 2)
        return similarity.to(self.require_canvas().tokens.device)

    def attend(
        self,
        number: int,
        layer: Any,
        normed: Tensor,
        columns: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        """Attention output [batch, n, width] of these columns; their keys and values are kept."""
        store, forward = self.layers[number], running()
        store.computed = columns
        turned = tuple(take(part.expand(len(columns), -1, -1), columns) for part in rotary)
        assert forward is not None
        labels = forward.labels.gather(1, columns.to(forward.labels.device))
        with forward_context(replace(forward, labels=labels, columns=columns)):
            output = layer.self_attn(
                hidden_states=normed, position_embeddings=turned, attention_mask=mask, past_key_values=self.cache,
                **self.model.direction(),
            )[0]  # fmt: skip
        if store.looking:
            store.looking = False
            store.lay_out(None, (0, store.columns), True, None)
        store.computed = None
        return output  # type: ignore[no-any-return]

    def evict(self) -> None:
        """Nothing is left out."""

    def keep_output(self, kind: str, number: int, output: Tensor, columns: Tensor, like: Tensor) -> Tensor:
        """Outputs of all columns [batch, column, width], those of `columns` renewed."""
        kept = self.outputs.get((kind, number))
        if kept is None:
            kept = self.outputs[kind, number] = torch.zeros_like(like)
        return kept.scatter_(1, columns[..., None].expand_as(output), output)

    def held(self) -> int:
        return super().held() + sum(output.nbytes for output in self.outputs.values())


def take(tensor: Tensor, columns: Tensor) -> Tensor:
    """[batch, column, width] → [batch, n, width]."""
    return tensor.gather(1, columns[..., None].expand(-1, -1, tensor.shape[-1]))
