"""From a model's answer to HumanEval to the program that is tested: fences, prose and what nobody calls are left out."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any

BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)  # an answer may end inside its last block
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def program(doc: dict[str, Any], answer: str, how: str) -> str:
    """The program of an answer to a HumanEval problem; how: see `Setup.sanitize`."""
    stub, before_fence = str(doc["prompt"]), answer.partition("```")[0]
    if how == "continue":
        return stub + answer
    if how == "fence":
        return stub + before_fence
    blocks = BLOCK.findall(answer)
    if how == "block":
        return stub + (blocks[0] if blocks else answer)
    # The stub first, so that its imports and its helpers are there; a definition that comes again takes its place.
    texts = [stub + before_fence, *(stub + "\n" + block for block in blocks), *blocks, before_fence, answer]
    kept = (by_entry_point(text, str(doc["entry_point"])) for text in texts)
    return next((code for code in kept if code is not None), texts[0])


def by_entry_point(text: str, name: str) -> str | None:
    """Imports, and what the function `name` needs, out of the longest stretch of lines that is Python.

    None where the stretch does not define the function, or defines it as a stub.
    """
    code = _longest_python(text.expandtabs(4))
    tree = ast.parse(code)
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for one in _defines(node):
            # A function that is defined again replaces the one before; assignments add up.
            defined[one] = [node] if isinstance(node, Definition) else [*defined.get(one, []), node]
    target = defined.get(name, [None])[-1]
    if not isinstance(target, Definition) or _is_stub(target):
        return None
    needed, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one not in needed:
            needed.add(one)
            parts = [part for node in defined.get(one, []) for part in ast.walk(node)]
            waiting += [part.id for part in parts if isinstance(part, ast.Name) and part.id in defined]
    kept: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept += [node for one in needed for node in defined[one]]
    lines: set[int] = set()
    for node in kept:
        decorators = node.decorator_list if isinstance(node, Definition) else []
        first = min([node.lineno, *(one.lineno for one in decorators)])
        lines |= set(range(first, (node.end_lineno or 0) + 1))
    return "".join(line + "\n" for number, line in enumerate(code.split("\n"), 1) if number in lines)


def _longest_python(text: str) -> str:
    """The longest run of lines that parses; it starts at a line without indentation."""
    lines, best = text.split("\n"), (0, 0)
    for start, line in enumerate(lines):
        if not line or line[0].isspace():
            continue
        end = len(lines)
        while end - start > best[1] - best[0]:
            wrong = _error_line("\n".join(lines[start:end]))
            if wrong is None:
                best = (start, end)
                break
            end = min(end - 1, start + max(wrong - 1, 0))  # what stands before the error may be Python
    return "\n".join(lines[slice(*best)])


def _error_line(code: str) -> int | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in a model's strings
            ast.parse(code)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None


def _defines(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Definition):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name))


def _is_stub(node: Definition) -> bool:
    """Whether there is nothing in it but a docstring, pass or an ellipsis."""
    return all(
        isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in node.body
    )
