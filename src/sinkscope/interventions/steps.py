"""When an intervention acts: `steps=(from, to)`, half-open, in forwards (whole numbers) or shares of the generation (floats)."""

from __future__ import annotations

from typing import Any, overload

from sinkscope.errors import InterventionError
from sinkscope.interventions.settings import Setting

End = int | float | None  # None is open
Steps = tuple[End, End]
EXPECTED = "two forwards or shares of the generation, [from, to), either of them null for open"


class StepsField:
    """The field `steps` of every intervention, checked when it is set, whatever `__post_init__` a subclass has."""

    @overload
    def __get__(self, owner: None, kind: type) -> None: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Steps | None: ...
    def __get__(self, owner: object | None, kind: type) -> Steps | None:
        return None if owner is None else owner.__dict__.get("steps")

    def __set__(self, owner: object, value: Steps | None) -> None:
        if value is not None and not is_steps(value):
            raise InterventionError(f"Expected steps as {EXPECTED}, such as (0.25, 0.5) or (1, None), got {value!r}.")
        owner.__dict__["steps"] = None if value is None else tuple(value)


def is_steps(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    if not all(
        end is None or (type(end) is int and end >= 0) or (type(end) is float and 0 <= end <= 1) for end in value
    ):
        return False
    first, last = value
    return type(first) is not type(last) or first is None or bool(first < last)


def within(steps: Steps | None, forward: int, share: float | None) -> bool:
    """Whether an intervention acts in this forward; forward: how many came before, share: how far the generation is.

    0 is the prefill or the first forward. A share is the decoder's step over the most steps that its settings can take: the
    tokens of a left-to-right generation, the steps of a schedule. With commits by a threshold a generation is over before.
    """
    if steps is None:
        return True
    if share is None and any(isinstance(end, float) for end in steps):
        raise InterventionError(
            "Steps as shares of the generation need a decoder that knows its steps; generate with sk.decode, sk.trace or "
            "model.generate, or give whole numbers of forwards."
        )
    first, last = ((share if isinstance(end, float) else forward) or 0 for end in steps)
    return (steps[0] is None or first >= steps[0]) and (steps[1] is None or last < steps[1])


def _label(steps: Steps) -> str:
    shown = ["" if end is None else f"{end:g}" if isinstance(end, int) else f"{100 * end:g}%" for end in steps]
    return f"steps {shown[0]}–{shown[1]}"


STEPS = Setting(
    "steps", None, lambda value: value is None or is_steps(value), EXPECTED, place=110, quiet=True, sweeps=False,
    freeze=tuple, thaw=list, label=_label,
)  # fmt: skip
