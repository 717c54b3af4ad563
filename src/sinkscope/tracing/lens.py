"""The logit lens: final norm and head applied to the hidden state behind each layer, as if it were the last.

`lens` reads one forward; `LensBuffer` reads every denoising step of a decoder that is being traced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.transfer import ToHost
from sinkscope.errors import ReadingError, TraceError
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.models.base import Model, Prompt

TOP = 3  # tokens kept per step, layer and position
AT_A_TIME = 1 << 28  # logits that are made at a time
BYTES = TOP * (torch.int32.itemsize + torch.float16.itemsize)  # per step, layer and position


@torch.inference_mode()
def lens(
    model: Model,
    ids: Prompt | list[Any],
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """ids [batch, position] → logits [layer, batch, position, vocab]; the last layer's are the model's own.

    ids: or a prompt as text or chat messages, or a list of prompts, which are padded at the left.
    layers, positions: only these, in the order given; negative ones count from the end. As in `model.logits`, row i of a
    shifted family predicts token i + 1.
    """
    chosen = _chosen("layers", layers, _layer_count(model))
    states = _states(model, ids, attention_mask, chosen)
    places = _chosen("positions", positions, states[chosen[0]].shape[1])
    found = None
    for index, layer in enumerate(chosen):  # into the result in place: beside it there is one part's logits at most
        state = states[layer] if positions is None else states[layer][:, places]
        for span, part in _parts(model, state):
            logits = read(model, part, normed=layer == _layer_count(model) - 1)
            if found is None:
                found = logits.new_empty(len(chosen), len(state), len(places), logits.shape[-1])
            found[index, :, span] = logits
            del logits  # before the next part's are made
    assert found is not None
    return found


@torch.inference_mode()
def hidden_states(model: Model, ids: Prompt | list[Any], attention_mask: Tensor | None = None) -> Tensor:
    """ids [batch, position] → what leaves each layer, [layer, batch, position, width]; the last one behind the final norm."""
    states = _states(model, ids, attention_mask, range(_layer_count(model)))
    last = states[len(states) - 1]
    return torch.stack([states[layer].to(last.device) for layer in range(len(states))])


def _states(
    model: Model, ids: Prompt | list[Any], attention_mask: Tensor | None, chosen: Sequence[int]
) -> dict[int, Tensor]:
    """What leaves the chosen layers, [batch, position, width] each, on the device of its layer."""
    rows, mask, _ = model.batch(ids, attention_mask)
    mask = None if mask is None or bool(mask.all()) else mask.to(model.device)
    base: Any = model.module.base_model
    with _outputs(base.layers, chosen) as found:
        output = base(
            rows.to(model.device),
            attention_mask=mask,
            position_ids=model.positions(mask),
            use_cache=False,
            **model.direction(),
        )
    if (last := len(base.layers) - 1) in found:
        found[last] = output.last_hidden_state
    return found


@contextmanager
def _outputs(layers: Sequence[nn.Module], chosen: Iterable[int]) -> Iterator[dict[int, Tensor]]:
    """What the chosen layers put out while this thread runs them; transformers' own way would leave its hooks behind."""
    found: dict[int, Tensor] = {}
    thread = threading.get_ident()

    def keep(layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            found[layer] = output[0] if isinstance(output, tuple) else output

    hooks = [layers[layer].register_forward_hook(partial(keep, layer)) for layer in set(chosen)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _parts(model: Model, state: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """[batch, position, width] in parts over positions whose logits are AT_A_TIME at most, or one position."""
    size = max(AT_A_TIME // (model.vocabulary * len(state)), 1)
    for start in range(0, state.shape[1], size):
        span = slice(start, min(start + size, state.shape[1]))
        yield span, state[:, span]


def read(model: Model, state: Tensor, normed: bool) -> Tensor:
    """[batch, position, width] → [batch, position, vocab]; normed: the final norm is in it already."""
    module: Any = model.module
    return model.recipe.head(module, state if normed else module.base_model.norm(state))


def _layer_count(model: Model) -> int:
    """The lens needs a stack of layers, a final norm and a head, under the names that transformers' decoders use."""
    if not isinstance(model, Model):
        raise ReadingError(
            f"Expected a model from sk.load, whose norm and head are known, got {type(model).__name__}; "
            "sk.wrap a model of transformers; of any other module sk.observe shows the attention."
        )
    base: Any = getattr(model.module, "base_model", None)
    if getattr(base, "layers", None) is None or getattr(base, "norm", None) is None:
        raise ReadingError(
            f"Expected a decoder with layers, a final norm and an output head, and {model.name} "
            f"({type(model.module).__name__}) has other parts; read its hidden states by hand."
        )
    return len(base.layers)


def _chosen(what: str, wanted: Sequence[Any] | None, count: int) -> list[int]:
    if wanted is None:
        return list(range(count))
    found = []
    for number in wanted:
        if not isinstance(number, int) or isinstance(number, bool) or not -count <= number < count:
            raise ReadingError(f"Expected {what} from {-count} to {count - 1}, got {number!r}.")
        found.append(number % count)
    if not found:
        raise ReadingError(f"Expected at least one of the {count} {what}, got none.")
    return found


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
        stack.enter_context(hook(self.model, "resid_post", self._take))

    def row(self, row: int, steps: int, real: slice) -> tuple[Tensor, Tensor]:
        """One row's tokens and probabilities, [step, layer, top, position], without its padding."""
        tokens, sure = (buffer[row, :steps, ..., real].clone() for buffer in (self.tokens, self.probability))
        if self.model.shift:  # nothing speaks for the first position; in a padded batch the padding before it would
            tokens[..., 0], sure[..., 0] = 0, 0
        return tokens, sure

    def _take(self, state: Tensor, context: HookContext) -> None:
        if context.kind != "denoise" or context.step is None:
            return
        state = state[: context.rows]
        first = context.columns.start + int(self.model.shift)
        for span, part in _parts(self.model, state):
            best = read(self.model, part, normed=False).softmax(-1, dtype=torch.float32).topk(TOP)  # [batch, row, top]
            start, stop = first + span.start, min(first + span.stop, self.width)
            where = (slice(None), context.step, context.layer, slice(None), slice(start, stop))
            for kept, into in ((best.indices, self.tokens), (best.values, self.probability)):
                self.to_host.put(kept[:, : stop - start].mT.to(into.dtype), into[where].copy_)
