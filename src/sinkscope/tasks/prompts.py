"""Prompts of your own: a file of JSON lines, each a prompt, with the answer or the check by which answers are judged."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import TaskError
from sinkscope.files import MB, read_text, short
from sinkscope.tasks.problem import Problem, before_markers, final

FIELDS = ("prompt", "answer", "check")
MOST = 64 * MB  # of a file


@dataclass(frozen=True)
class OwnPrompt(Problem):
    """A prompt of a file; judged by its answer or its check, and never right where it has neither."""

    def check(self, text: str) -> bool:
        """Whether the text holds what the check looks for, or gives the answer."""
        written = before_markers(text)
        pattern = self.data.get("check")
        if pattern is not None:
            return re.search(pattern, written) is not None
        return bool(self.answer) and gives_answer(written, self.answer)

    @property
    def is_judged(self) -> bool:
        """Whether anything says which texts are right."""
        return bool(self.answer) or "check" in self.data


def gives_answer(text: str, answer: str) -> bool:
    """Whether a text gives an answer: behind #### where it has that mark, else anywhere, as whole words."""
    said = final(text)
    if said is not None:
        return said == answer.strip()
    return re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w|[.,]\d)", text) is not None


def read_prompts(path: Path | str) -> list[OwnPrompt]:
    """The prompts of a file in its order: each line a JSON object with prompt, and answer or check; or a JSON text alone."""
    file = Path(path).expanduser()
    lines = read_text(file, TaskError, MOST).splitlines()
    found = [
        _read_line(line, f"{short(str(file))}, line {number}", number)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise TaskError(
            f'Expected prompts in {short(str(file))}, one JSON object a line such as {{"prompt": "…"}}, got none.'
        )
    return found


def _read_line(line: str, where: str, number: int) -> OwnPrompt:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise TaskError(
            f'{where}: expected a JSON object such as {{"prompt": "…", "answer": "…"}}, got {short(line, 60)}.'
        ) from None
    entry = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(name, ""), str) for name in FIELDS):
        raise TaskError(f"{where}: expected an object whose prompt, answer and check are texts, got {short(line, 60)}.")
    if unknown := sorted(set(entry) - set(FIELDS)):
        raise TaskError(f"{where}: expected the fields {', '.join(FIELDS)}, got {short(unknown[0], 60)}; leave it out.")
    prompt, answer, check = (entry.get(name, "") for name in FIELDS)
    if not prompt.strip():
        raise TaskError(f"{where}: expected a prompt with some text, got an empty one.")
    if answer and check:
        raise TaskError(f"{where}: expected an answer or a check, got both; leave one out.")
    if check:
        _check_pattern(check, where)
    data = {"check": check} if check else {}
    return OwnPrompt("prompts", prompt, answer.strip(), 1, str(number), data)


def _check_pattern(check: str, where: str) -> None:
    try:
        re.compile(check)
    except re.error as error:
        raise TaskError(f"{where}: the check is no regular expression ({error}); correct it.") from None


def digest_prompts(path: Path | str) -> str:
    """Of a file's prompts, so that a run is not continued with others."""
    text = json.dumps([(one.prompt, one.answer, dict(one.data)) for one in read_prompts(path)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_name(path: Path | str, taken: set[str]) -> str:
    """What a file's prompts are called in results: the file's name without its ending."""
    name = re.sub(r"[^\w.-]+", "-", Path(path).stem) or "prompts"
    return f"{name}-prompts" if name in taken else name
