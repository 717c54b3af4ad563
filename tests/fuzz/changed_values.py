"""Plain values of a file, one of them changed: every place × another kind, sign, size, or gone."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 7, 10**6, 2**31, 2**63, 10**30, 0.0, 0.5, -1.5, 1e-300, 1e300]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.integers(-4, 300),
)
PLAIN = st.one_of(
    NUMBERS, st.none(), st.booleans(), st.text(max_size=6),
    st.sampled_from(["", "\x1b[31m", "\u202e", "x" * 5000, "64", "../up", "/etc/passwd", "a\0b", "none", "\udcff"]),
)  # fmt: skip
VALUES = st.one_of(
    PLAIN, st.lists(PLAIN, max_size=3), st.dictionaries(st.text(max_size=4), PLAIN, max_size=2), st.just([[[[]]]] * 3),
)  # fmt: skip
Place = tuple[Any, ...]


def places(value: Any, path: Place = ()) -> list[Place]:
    """Where every value of a file stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def changed(data: st.DataObject, values: Any, new: st.SearchStrategy[Any] = VALUES) -> Any:
    """A copy with one value replaced, taken out, or added; the whole of it one time in forty."""
    if not data.draw(st.integers(0, 39)):
        return data.draw(new)
    values = copy.deepcopy(values)
    *way, last = data.draw(st.sampled_from(places(values)[1:]))
    inside = values
    for key in way:
        inside = inside[key]
    match data.draw(st.sampled_from(["replace", "replace", "replace", "gone", "more"])):
        case "replace":
            inside[last] = data.draw(new)
        case "gone":
            del inside[last]
        case _ if isinstance(inside, dict):
            inside[data.draw(st.sampled_from(["x", "schema", "\x1b", "name"]))] = data.draw(new)
        case _:
            inside.append(data.draw(new))
    return values
