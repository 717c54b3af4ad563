"""Worked examples that a protocol's authors use and that belong to another package: read where they are, never copied."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
from pathlib import Path

from sinkscope.errors import TaskError

OPENCOMPASS = "gsm8k_gen_1d7fe4.py"  # what OpenCompass's gsm8k_gen stands for


def worked_examples(file: Path | None, count: int, protocol: str) -> list[dict[str, str]]:
    """Turns of `user` and `target` (the assistant's), from a file or from an installed opencompass.

    file: OpenCompass's own configuration (.py, which is parsed and not run), or JSON lines with user and assistant.
    """
    spec = importlib.util.find_spec("opencompass")
    folders = list(spec.submodule_search_locations or []) if spec else []
    places = [Path(folder) / "configs" / "datasets" / "gsm8k" / OPENCOMPASS for folder in folders]
    path = file or next((place for place in places if place.is_file()), None)
    if path is None:
        raise TaskError(
            f"The protocol {protocol} takes {count} worked examples from OpenCompass, which is not installed; pip install "
            f"opencompass, name its {OPENCOMPASS} with --examples, or choose another protocol, such as --protocol paper."
        )
    try:
        text = path.read_text(encoding="utf-8")
        rows = [] if path.suffix == ".py" else [json.loads(line) for line in text.splitlines() if line.strip()]
        turns = [{"user": str(row["user"]), "target": str(row["assistant"])} for row in rows]
        if path.suffix == ".py":
            turns = _of_configuration(text)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError) as error:
        raise TaskError(
            f"Expected worked examples in {path}, as OpenCompass's configuration or as JSON lines with user and assistant, "
            f"got something else ({type(error).__name__}: {error})."
        ) from None
    if len(turns) < count:
        raise TaskError(f"Expected {count} worked examples for {protocol} in {path}, got {len(turns)}.")
    return turns[:count]


def _of_configuration(text: str) -> list[dict[str, str]]:
    """Pairs of dict(role='HUMAN', prompt=…) and dict(role='BOT', prompt=…), in their order; the question has no pair."""
    said = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            words = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
            if {"role", "prompt"} <= words.keys():
                said.append((node.lineno, node.col_offset, str(words["role"]), str(words["prompt"])))
    turns = [(role, prompt) for *_, role, prompt in sorted(said)]
    return [
        {"user": user, "target": answer}
        for (role, user), (other, answer) in itertools.pairwise(turns)
        if (role, other) == ("HUMAN", "BOT")
    ]
