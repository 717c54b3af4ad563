"""The page on the Python interface: each public name rendered by mkdocstrings, and an example that a test runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent / "reference" / "examples.py"
# What a package of one's own is made of; the guide on extensions has the rest of sinkscope.extend.
EXTEND = ("Call", "Change", "Memory", "Label")
GROUPS = {
    "Load and generate": ("load", "Model", "wrap", "register", "Decode", "decode", "SparseCache", "checkup"),
    "Look": ("trace", "Trace", "Keep", "Threshold", "ZScore", "HeadShare", "observe", "attend", "lens", "activations", "hook",
             "HookContext"),
    "Intervene": ("intervene",),  # and every intervention
    "Studies and benchmarks": ("Study", "run", "Run", "Ray", "tasks", "HarnessLM"),
    "The rest": (),  # and what nobody put anywhere
}  # fmt: skip
# Settings that several of the classes above have; each is described once.
SHARED = ("Intervention", "Selector", "Ranked")


def page(note: str) -> str:
    """The whole page; note: where it is from."""
    import sinkscope as sk
    from sinkscope import extend
    from sinkscope.interventions import Intervention
    from sinkscope.interventions.ranked import Ranked

    shown = examples()
    parts = ["# Python", "", note, ""]
    parts += ["Examples below begin with these lines. A test runs all of them.", "", *write_code(shown["begin"])]
    left = dict.fromkeys(sorted(sk.__all__, key=str.lower))
    for title, names in GROUPS.items():
        mine = [name for name in names if name in left]
        if title == "Intervene":
            mine += [name for name in left if is_kind(getattr(sk, name), Intervention)]
        if title == "The rest":
            mine = list(left)
        parts += [f"## {title}", ""]
        for name in mine:
            left.pop(name)
            parts += write_section(f"sk.{name}", getattr(sk, name), shown[name])
        if title == "Load and generate":
            parts += write_section("Evicting", extend.Evicting, "")
            parts += write_samplers()
        if title == "Intervene":
            shared = {"Ranked": Ranked, "Selector": extend.Selector, "Intervention": extend.Intervention}
            for name in reversed(SHARED):
                parts += write_section(name, shared[name], shown.get(f"extend.{name}", ""))
    parts += [
        "## Interventions of your own",
        "",
        "From `sinkscope.extend`; [how to write one](../guides/extend.md).",
        "",
    ]
    for name in EXTEND:
        parts += write_section(name, getattr(extend, name), shown[f"extend.{name}"])
    return "\n".join(parts)


def is_kind(found: Any, kind: type) -> bool:
    return inspect.isclass(found) and issubclass(found, kind)


def examples() -> dict[str, str]:
    """Name → its lines of examples.py."""
    parts = re.split(r"^# ---- (\S+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def write_code(text: str) -> list[str]:
    return ["```python", text, "```", ""] if text else []


def write_directive(heading: str, found: Any) -> list[str]:
    """What mkdocstrings replaces by signature, description and members."""
    path = found.__name__ if inspect.ismodule(found) else f"{found.__module__}.{found.__qualname__}"
    return [f"::: {path}", f'    options: {{heading: "{heading}", toc_label: "{heading}"}}', ""]


def write_section(heading: str, found: Any, example: str) -> Iterator[str]:
    if isinstance(found, str):
        yield from (f"### {heading}", "", "The version, as text.", "")
    else:
        yield from write_directive(heading, found)
    yield from write_code(example)


def write_samplers() -> Iterator[str]:
    """The samplers, which are constructors of `sk.Decode`."""
    from sinkscope.decoding.settings import SAMPLERS

    yield from (
        "### Samplers",
        "",
        "Settings that a sampler's table leaves out are those of [sk.Decode](#sinkscope.decoding.settings.Decode).",
        "",
    )
    for name in sorted(SAMPLERS.names()):
        yield from write_directive(f"sk.Decode.{name}", SAMPLERS[name])
