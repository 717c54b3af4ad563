"""Short names of conditions, in the words of the pages: top key, strong sink > 0.3, random keys of the same mass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Settings that a short name can say; a condition with any other keeps its whole label.
SAID = {"name", "k", "rank", "rows", "kinds", "above", "below", "match", "of", "positions", "since"}
RANDOM = {"count": "as many", "mass": "same mass"}
SINCE = {
    True: {"first": "from the first row", "second": "after the prefill"},
    False: {"first": "from the first forward", "second": "from the second forward"},
}


def short_names(conditions: Mapping[str, Mapping[str, Any]], causal: bool) -> dict[str, str]:
    """Whole label → short name, of conditions that stand in one table; the label itself where a name would stand for two."""
    several = {word: len({one[word] for one in conditions.values() if one.get(word)}) > 1 for word in ("rank", "rows")}
    found = {label: _name(condition, several, causal) or label for label, condition in conditions.items()}
    names = list(found.values())
    return {label: name if names.count(name) == 1 else label for label, name in found.items()}


def _name(condition: Mapping[str, Any], several: Mapping[str, bool], causal: bool) -> str | None:
    """None where no short name says all of it."""
    if any(value not in (None, False) for name, value in condition.items() if name not in SAID):
        return None
    kind = condition["name"]
    if kind == "mask_positions":
        places = condition["positions"]
        where = f"position{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"
        return f"{where} {SINCE[causal][condition.get('since') or 'first']}"
    if not condition["k"]:
        return None
    keys = _keys(condition)
    if keys is None:
        return None
    words = [keys]
    if kind == "mask_random":
        words = ["random" if keys == "top key" else f"random for {keys}", RANDOM[condition.get("match") or "count"]]
    elif kind != "mask_sinks":
        words = [kind.replace("_", " "), "random" if condition.get("of") == "random" else keys]
    if several["rank"] and kind != "mask_random":
        words.append(condition["rank"].replace("_", " "))
    if several["rows"]:
        words.append("last row" if condition["rows"] == "last" else "columns")
    return ", ".join(words)


def _keys(condition: Mapping[str, Any]) -> str | None:
    """Which keys are ranked; None for a mixture, or a rule that has no name of its own."""
    kinds, above, below = (condition.get(name) for name in ("kinds", "above", "below"))
    if sum(one is not None for one in (kinds, above, below)) > 1:
        return None
    if kinds is not None:
        return f"{kinds if isinstance(kinds, str) else '+'.join(kinds)} key"
    rule: Mapping[str, Any] | None = above or below
    if rule is None:
        return "top key"
    if rule.get("rule") != "head_share":
        return None
    return f"strong sink > {rule['epsilon']:g}" if above else f"weak top key < {rule['epsilon']:g}"


def numbered(names: Mapping[str, str], ks: Sequence[Any]) -> dict[str, str]:
    """The names with their K, for tables that have no column per K."""
    return {label: f"{name}, K={k}" if k and name != label else name
            for (label, name), k in zip(names.items(), ks, strict=True)}  # fmt: skip
