"""What a cache policy is: frozen settings that say which columns are computed again, and which keys are kept meanwhile.

Between two looks at the whole canvas only some columns are computed, against the keys and values that were kept. A policy
answers two questions: `due`, what does the next forward compute, and `score`, which columns outside its window stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.attention.forward import mixed, running
from sinkscope.decoding.canvas import Canvas, Step
from sinkscope.errors import DecodeError
from sinkscope.registry import Registry
from sinkscope.validation import settings

if TYPE_CHECKING:
    from sinkscope.decoding.caches.forwards import PolicyForwards
    from sinkscope.models.model import Model

Span = tuple[int, int]
Per = Literal["head", "layer", "model"]


@dataclass
class CacheStep:
    """State of a generation when a cache policy is called; counts are of earlier forwards.

    A *refresh* is a forward over the whole canvas, which renews the cache.

    Args:
        shift: Whether the logits at a column predict the next column.
        block: First column of the present block, and the column after its last.
        before: Block of the previous forward; None at the first forward.
        index: Number of forwards of this block.
        forward: Number of forwards of this generation.
        since: Number of forwards since the last refresh, itself included.
        served: Number of blocks decoded since the last refresh.
        looks: Number of refreshes.
        layer: Index of the layer.
        drift: Change of the most-attended key's value since the last refresh (1 - cosine).
        similarity: Similarity of values now and in the cache, [batch, column] of this layer; only under policies that
            compare values.
        real: bool [batch, column], False at padding; None if nothing is padded.
        memory: Storage of the policy for this generation.
    """

    shift: bool
    block: Span = (0, 0)
    before: Span | None = None
    index: int = 0
    forward: int = 0
    since: int = 0
    served: int = 0
    looks: int = 0
    layer: int = 0
    drift: float = 0.0
    similarity: Tensor | None = None
    real: Tensor | None = None
    memory: dict[Any, Any] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether this is the first forward of a block."""
        return self.before != self.block

    def span(self, start: int, stop: int) -> Span:
        """Return the columns whose hidden states predict the given columns, together with these.

        Args:
            start: First column.
            stop: Column after the last one.
        """
        return max(start - int(self.shift), 0), stop

    def draw(self, seed: int, shape: tuple[int, ...], alike: bool) -> Tensor:
        """Sample uniform numbers [batch, kv head, column] for this refresh and layer.

        A sequence has the same numbers alone and in a padded batch. All sequences share them, unless the forward has a
        seed per sequence.

        Args:
            seed: Seed of the policy.
            shape: Shape of the result.
            alike: True to give all heads the same numbers.
        """
        forward = running()
        seeds = (forward.row_seeds if forward is not None else None) or (0,)
        heads = 1 if alike else shape[1]
        rows = []
        for row in range(shape[0]):
            number = mixed(seed, seeds[row % len(seeds)], self.looks, self.layer)
            rows.append(torch.rand(shape[2], heads, generator=torch.Generator().manual_seed(number)).mT)
        drawn = torch.stack(rows).expand(shape)
        if self.real is None:
            return drawn
        padding = (~self.real).sum(1).cpu()
        shifted = (torch.arange(shape[2]) - padding[:, None]).clamp(min=0)
        return drawn.gather(-1, shifted[:, None, :].expand(shape))


class KeepsAll:
    """What a policy says that leaves no key out."""

    needs_received: bool = False
    keep: float = 1.0  # share of the columns outside the window that stays
    per: Per = "head"  # which heads keep the same columns: each its own, all of a layer, or all of the model
    recent: int = 0  # nearest columns that stay, whatever the score says
    drift: float | None = None  # limit of how far values may turn before the next look; None: they are not watched
    forced: Literal["keep", "drop"] | None = None  # what becomes of sinks, whatever the score says
    rule: Mapping[str, Any] | None = None  # what a sink is, as in study files; None: an epsilon of 3, in column sums


@settings(DecodeError)
class CachePolicy(KeepsAll):
    """Base class of cache policies, which decide what each forward computes and which keys it attends to.

    Subclass it with a `name` and with settings as fields. Keep what must be remembered during a generation in
    `step.memory`. Columns are columns of the canvas; a *refresh* is a forward over the whole canvas.
    """

    name: ClassVar[str] = ""
    compared: ClassVar[bool] = False  # whether it was compared with its authors' code
    evicts: ClassVar[bool] = False  # whether `score` decides what is kept; else every column is
    counts_padding: ClassVar[bool] = False  # positions are columns, padding included, whatever the family does
    draws_computed: ClassVar[bool] = False  # random numbers are drawn for the computed columns alone

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if vars(cls).get("name"):
            CACHE_POLICIES.add(cls.name, cls)

    # ---- what a policy decides

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        """Decide what the next forward computes.

        Args:
            canvas: Canvas of the generation.
            step: State of the generation.

        Returns:
            True for the whole canvas, False for the window, or bool [batch, column].
        """
        return step.moved

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        """Return the columns that are computed between refreshes and always kept: those that predict the block.

        Args:
            canvas: Canvas of the generation.
            step: State of the generation.
        """
        return step.span(*step.block)

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        """Score the columns; those with the largest scores are kept. Called for each layer at a refresh.

        Args:
            keys: Keys [batch, kv head, column, dim].
            values: Values [batch, kv head, column, dim].
            received: Attention that each column received from all queries at this refresh, [batch, head, column]; None
                unless `needs_received`.
            canvas: Canvas of the generation.
            step: State of the generation.

        Returns:
            Scores [batch, kv head, column].
        """
        return keys.new_zeros(keys.shape[:3])

    def watch(self, call: Call, canvas: Canvas, step: CacheStep) -> None:
        """Observe every attention call of a forward; override it to read queries and scores.

        Args:
            call: Attention call.
            canvas: Canvas of the generation.
            step: State of the generation.
        """

    def note(self, done: Step, canvas: Canvas, step: CacheStep) -> None:
        """Observe the canvas after every commit.

        Args:
            done: Denoising step that was just finished.
            canvas: Canvas after the commit.
            step: State of the generation.
        """

    def candidates(self, wanted: Tensor, canvas: Canvas, step: CacheStep) -> Tensor:
        """Return where this step needs candidates and confidences, bool [batch, column].

        Args:
            wanted: Columns that the commit rule asked for, bool [batch, column].
            canvas: Canvas of the generation.
            step: State of the generation.
        """
        return wanted

    # ---- what follows

    def budget(self, outside: Tensor) -> Tensor:
        """Return the number of columns that are kept outside the window, int [batch].

        Args:
            outside: Number of columns outside the window, int [batch].
        """
        return (outside * self.keep).ceil().long()

    @property
    def lives_on(self) -> bool:
        """Whether a refresh serves several blocks, so that a later block chooses among all columns again."""
        return not self.evicts

    def to_dict(self) -> dict[str, Any]:
        """Return name and settings, as a study file has them."""
        return {"name": self.name, **asdict(self)}

    def forwards(self, model: Model, shift: bool) -> PolicyForwards:
        """Return the object that runs the canvas under this policy.

        Args:
            model: Model to run.
            shift: Whether the logits at a column predict the next column.
        """
        from sinkscope.decoding.caches.forwards import PolicyForwards

        return PolicyForwards(model, self, shift)


CACHE_POLICIES: Registry[type[CachePolicy]] = Registry("cache policy", DecodeError)


def read_policy(value: Any) -> Any:
    """A mapping of a study file, or the name of a policy of the registry, as the policy; others as they are."""
    if isinstance(value, Mapping):
        words = {str(name): one for name, one in value.items()}
        return CACHE_POLICIES[words.pop("name", "sparse_cache")](**words)
    if isinstance(value, str) and value not in ("none", "prefix", "dual", "exact"):
        return CACHE_POLICIES[value]()
    return None if value == "none" else value
