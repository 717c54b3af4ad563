"""The logit lens while a decoder runs: which tokens each layer would write at each position, were it the last."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.context import running
from sinkscope.attention.transfer import ToHost
from sinkscope.errors import TraceError
from sinkscope.models.base import Model

TOP = 3  # tokens kept per step, layer and position
AT_A_TIME = 1 << 28  # logits that a GPU makes at a time
BYTES = TOP * (torch.int32.itemsize + torch.float16.itemsize)  # per step, layer and position


class LensBuffer:
    """Top tokens and their probabilities of a batch, at the positions that they are *for*.

    In a shifted family a row speaks for the position after its own; it is kept there, so that a position always shows what
    would be written on it. Where a step computed no row for a position, its probabilities are 0.
    """

    def __init__(self, model: Model, batch: int, steps: int, layers: int, width: int, to_host: ToHost) -> None:
        self.model, self.width, self.to_host = model, width, to_host
        self.tokens = torch.zeros(batch, steps, layers, TOP, width, dtype=torch.int32)
        self.probability = torch.zeros(batch, steps, layers, TOP, width, dtype=torch.float16)

    def hooks(self, stack: ExitStack) -> None:
        """Listen to what each layer puts out; taken out when the stack closes."""
        base: Any = getattr(self.model.module, "base_model", None)
        layers: Sequence[nn.Module] = getattr(base, "layers", [])
        if len(layers) != self.tokens.shape[2] or getattr(base, "norm", None) is None:
            raise TraceError(
                f"The lens needs a decoder with a list of layers and a final norm, and {self.model.name} has other parts; "
                "trace it without the lens."
            )
        for index, layer in enumerate(layers):
            stack.callback(layer.register_forward_hook(self._listen(index, base.norm)).remove)

    def row(self, row: int, steps: int, real: slice) -> tuple[Tensor, Tensor]:
        """One row's tokens and probabilities, [step, layer, top, position], without its padding."""
        tokens, sure = (buffer[row, :steps, ..., real].clone() for buffer in (self.tokens, self.probability))
        if self.model.shift:  # nothing speaks for the first position; in a padded batch the padding before it would
            tokens[..., 0], sure[..., 0] = 0, 0
        return tokens, sure

    def _listen(self, layer: int, norm: nn.Module) -> Any:
        @torch.inference_mode()
        def take(_: nn.Module, __: Any, output: Any) -> None:
            forward = running()
            if forward is None or forward.kind != "denoise":
                return
            state: Tensor = (output[0] if isinstance(output, tuple) else output)[: forward.rows]
            start = forward.start + int(self.model.shift)
            most = state.shape[1] if state.device.type == "cpu" else AT_A_TIME // (self.model.vocabulary * len(state))
            for part in state.split(max(most, 1), dim=1):
                chances = self.model.recipe.head(self.model.module, norm(part)).float().softmax(-1)
                best = chances.topk(TOP, dim=-1)  # [batch, row, top]
                span = slice(start, min(start + part.shape[1], self.width))
                rows, where = span.stop - start, (slice(None), forward.step, layer, slice(None), span)
                self.to_host.put(best.indices[:, :rows].mT.to(torch.int32), self.tokens[where].copy_)
                self.to_host.put(best.values[:, :rows].mT.to(torch.float16), self.probability[where].copy_)
                start = span.stop

        return take
