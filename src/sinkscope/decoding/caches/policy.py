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
    """Where a generation stands when a policy is asked; counts are of forwards before this one."""

    shift: bool  # the row before a column predicts it
    block: Span = (0, 0)  # first column of the block at work, and the one after its last
    before: Span | None = None  # the block of the forward before; None at the first
    index: int = 0  # forwards of this block
    forward: int = 0  # forwards of this generation
    since: int = 0  # forwards since the last look at the whole canvas, itself included
    served: int = 0  # blocks that the last look has served
    looks: int = 0
    layer: int = 0
    drift: float = 0.0  # how far the values of the most attended keys have turned since the look
    similarity: Tensor | None = None  # [batch, column] of this layer: values now and in the cache; see `LayerForwards`
    real: Tensor | None = None  # bool [batch, column]; None: nothing is padded
    memory: dict[Any, Any] = field(default_factory=dict)  # what the policy remembers of this generation

    @property
    def moved(self) -> bool:
        """Whether this is the first forward of a block."""
        return self.before != self.block

    def span(self, start: int, stop: int) -> Span:
        """The columns whose hidden states predict those from start to stop, and their own."""
        return max(start - int(self.shift), 0), stop

    def draw(self, seed: int, shape: tuple[int, ...], alike: bool) -> Tensor:
        """Uniform numbers [batch, kv head, column] of this look and layer, the same for a row alone or in a padded batch.

        All rows share a draw, unless the forward has a seed per row. alike: all heads share it too.
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
    """Subclass it with a `name` and settings as fields; what it remembers of a generation goes into `step.memory`."""

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
        """What the next forward computes: True the whole canvas, False the window, or bool [batch, column]."""
        return step.moved

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        """The columns that are computed between looks, and are always kept: those that predict the block."""
        return step.span(*step.block)

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        """What is kept first, [batch, kv head, column]; asked for each layer at a look.

        keys, values: [batch, kv head, column, dim]. received: [batch, head, column], what each column received from all
        queries at this look, where `needs_received`.
        """
        return keys.new_zeros(keys.shape[:3])

    def watch(self, call: Call, canvas: Canvas, step: CacheStep) -> None:
        """Called with every attention call of a forward; a policy that overrides it sees queries and scores."""

    def note(self, done: Step, canvas: Canvas, step: CacheStep) -> None:
        """Called after every commit, with the canvas as it is now."""

    def candidates(self, wanted: Tensor, canvas: Canvas, step: CacheStep) -> Tensor:
        """Where this step needs candidates and confidences, bool [batch, column]."""
        return wanted

    # ---- what follows

    def budget(self, outside: Tensor) -> Tensor:
        """How many columns are kept of so many outside the window; int [batch] both."""
        return (outside * self.keep).ceil().long()

    @property
    def lives_on(self) -> bool:
        """Whether a look serves several blocks, so that a later one chooses among all columns again."""
        return not self.evicts

    def to_dict(self) -> dict[str, Any]:
        """As a study file names it."""
        return {"name": self.name, **asdict(self)}

    def forwards(self, model: Model, shift: bool) -> PolicyForwards:
        """What runs the canvas under this policy."""
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
