"""What the harness hands in, checked: texts, stop strings, lengths, batch sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.fields import Allowed, need, whole

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


def count(name: str, value: Any, least: int) -> int:
    need(name, value, Allowed(whole(least).expected, whole(least, (1 << 63) - 1)), TaskError)
    return int(value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TaskError(f"Expected the text of a request, got {type(value).__name__}; is the task's doc_to_text right?")
    return value


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TaskError(f"Expected generation settings such as until and max_gen_toks, got {type(value).__name__}.")
    return dict(value)


def stops(until: Any) -> list[str]:
    """Stop strings: one, several or none. A number would never be found in a text, so that it is refused."""
    several = [] if until is None else [until] if isinstance(until, str) else until
    if not isinstance(several, list | tuple) or any(not isinstance(stop, str) for stop in several):
        raise TaskError(f"Expected stop strings in until, such as ['\\n\\n'], got {until!r}; put quotes round numbers.")
    return [stop for stop in several if stop]


def longest(asked: Any) -> int | None:
    """The length that a task wishes for; YAML and command lines may give it as text."""
    if asked is None:
        return None
    text = str(asked)
    if isinstance(asked, bool) or not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 31:
        raise TaskError(f"Expected max_gen_toks as a whole number of at least 1, got {asked!r}.")
    return int(text)


def size_of_batch(batch_size: int | str | None, most: int | None) -> int:
    """The harness hands `None` or "auto" on where nobody gave a batch size."""
    asked = "8" if batch_size is None or str(batch_size).startswith("auto") else str(batch_size)
    if not (asked.isascii() and asked.isdecimal() and int(asked)):
        raise TaskError(f"Expected a batch size of at least 1, or auto, got {batch_size!r}.")
    return max(1, min(int(asked), most or int(asked)))


def occurrences(requests: list[Instance]) -> list[int]:
    """Of each request, how often the same object came before: the harness asks for repeats by handing it in again."""
    seen: Counter[int] = Counter()
    counted = []
    for request in requests:
        counted.append(seen[id(request)])
        seen[id(request)] += 1
    return counted


def batched(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Names in their order, so many at a time; the last batch may have fewer."""
    for start in range(0, len(names), size):
        yield names[start : start + size]
