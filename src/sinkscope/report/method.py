"""How a run was made and what it cannot say: the last section of the page, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHOWN_FACTS = ("study", "about", "seed", "versions", "backend", "machine", "units", "seconds")
METHOD = (
    "A sink draws more attention than the mean of the other keys plus ε; ε = 3 × the uniform share unless said otherwise.",
    "Masking hides the K largest sinks of every head at the next step; the controls hide as many random keys "
    "(count-matched), or random keys that drew as much attention (mass-matched).",
    "Accuracies have 95 % Wilson intervals; differences are paired on the same problems (exact McNemar, bootstrap).",
)


def caveats(about: Mapping[str, Any], counts: Sequence[int]) -> list[str]:
    """What a reader should keep in mind: size of the models, number of problems, what the paper leaves open.

    about: what run.json holds; counts: problems of each cell.
    """
    sizes = [
        int(known["parameters"])
        for model in about.get("models", [])
        if isinstance(model, dict) and "parameters" in (known := model.get("identity") or {})
    ]
    lines = []
    if sizes:
        span = short(min(sizes)) if min(sizes) == max(sizes) else f"{short(min(sizes))} to {short(max(sizes))}"
        lines.append(f"These models have {span} parameters, the paper’s 7 to 8 billion.")
    if counts and min(counts) < 200:
        lines.append(f"Some cells rest on {min(counts)} problems: intervals are wide, and “undecided” means just that.")
    lines.append("The paper leaves the unit of ε open; the thresholds section shows both readings.")
    return lines


def short(count: int) -> str:
    """1100928 → 1.1 million."""
    for size, word in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return str(count)


def facts(about: Mapping[str, Any]) -> list[list[str]]:
    """Plain facts of run.json, one per line: the run, then each model."""
    lines = []
    for name in SHOWN_FACTS:
        value = about.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {word}" for key, word in value.items() if isinstance(word, str | int | float))
        if value not in (None, "", [], {}):
            lines.append([name.replace("_", " "), str(value)[:300]])
    for model in about.get("models", []):
        if isinstance(model, dict):
            known = model.get("identity", {})
            named = ("family", "parameters", "layers", "heads", "dtype")
            words = [f"{name} {known[name]}" for name in named if name in known]
            lines.append([str(model.get("name", "model")), ", ".join([*words, str(known.get("fingerprint", ""))[:16]])])
    return lines
