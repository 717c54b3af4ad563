"""The page on the Python interface: every public name with its parameters as a table and an example that a test runs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent / "reference" / "examples.py"
# What a package of one's own is made of; the guide on extensions has the rest of sinkscope.extend.
EXTEND = ("Intervention", "Selector", "Call", "Change", "Memory", "Label")
WIDTH = 76  # of a signature
SHOWN = 6  # optional parameters of a signature
# Names of types that say less than the type itself.
PLAIN = {"Text": "str", "ModelName": "str", "Whole0": "int", "Whole1": "int", "Whole2": "int", "Truth": "bool",
         "Layers": "tuple[int, ...]", "Channels": "tuple[int, ...]", "Heads": "tuple[tuple[int, int], ...]", "SinkRule": "Rule",
         "Count": "int", "FromZero": "int", "Positions": "tuple[int, ...]",
         "TokenId": "int", "TokenIds": "tuple[int, ...]", "Seed": "int", "Number": "float", "Share": "float",
         "NonNegative": "float", "At": "str", "Commit": "str", "StepsField": "Steps",
         "PatchSource": "'next' or 'previous' or 'first'"}  # fmt: skip
GROUPS = {
    "Load and generate": ("load", "Model", "wrap", "register", "Decode", "decode", "SparseCache", "checkup"),
    "Look": ("trace", "Trace", "Keep", "Threshold", "ZScore", "HeadShare", "observe", "attend", "lens", "activations", "hook",
             "HookContext"),
    "Intervene": ("intervene",),  # and every intervention
    "Studies and benchmarks": ("Study", "run", "Run", "Ray", "tasks", "HarnessLM"),
    "The rest": (),  # and what nobody put anywhere
}  # fmt: skip


def page(note: str) -> str:
    """The whole page; note: where it is from."""
    import sinkscope as sk
    from sinkscope import extend
    from sinkscope.interventions import Intervention

    shown = examples()
    parts = ["# Python", "", note, ""]
    parts += ["Examples below begin with these lines. A test runs all of them.", "", *_code(shown["begin"])]
    left = dict.fromkeys(sorted(sk.__all__, key=str.lower))
    for title, names in GROUPS.items():
        mine = [name for name in names if name in left]
        if title == "Intervene":
            kinds = [
                name
                for name in left
                if inspect.isclass(getattr(sk, name)) and issubclass(getattr(sk, name), Intervention)
            ]
            mine += kinds
        if title == "The rest":
            mine = list(left)
        parts += [f"## {title}", ""]
        for name in mine:
            left.pop(name)
            parts += [*_section(f"sk.{name}", getattr(sk, name), shown[name])]
    parts += [
        "## Interventions of your own",
        "",
        "From `sinkscope.extend`; [how to write one](../guides/extend.md).",
        "",
    ]
    for name in EXTEND:
        parts += _section(name, getattr(extend, name), shown[f"extend.{name}"])
    return "\n".join(parts)


def examples() -> dict[str, str]:
    """Name → its lines of examples.py."""
    parts = re.split(r"^# ---- (\S+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def _section(name: str, found: Any, example: str) -> Iterator[str]:
    yield from (f"### {name}", "")
    if isinstance(found, str):
        yield from ("The version, as text.", "")
    elif inspect.ismodule(found):
        yield from (inspect.getdoc(found) or "", "")
        yield from _methods({one: getattr(found, one) for one in found.__all__}, name)
    else:
        fields = _fields(found) if inspect.isclass(found) else {}
        rows = _parameters(found, fields)
        if rows or not inspect.isclass(found):
            yield from _code(_signature(name, rows))
        text, meanings = _described(inspect.getdoc(found) or "", list(rows))
        yield from (text, "")
        yield from _table(rows, meanings, fields)
        if inspect.isclass(found):
            own = {one: member for one, member in vars(found).items() if not one.startswith("_") and one not in rows}
            yield from _methods(own, name.removeprefix("sk."))
    yield from _code(example)


# ---- parameters

Row = tuple[str, str]  # type and default


def _parameters(found: Any, fields: Mapping[str, tuple[str, str]]) -> dict[str, Row]:
    """Name → type and default, as they stand in the source; none for what is not made by calling it."""
    if inspect.isclass(found) and not dataclasses.is_dataclass(found) and "__init__" not in vars(found):
        return {}
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return {}
    rows: dict[str, Row] = {}
    for one in signature.parameters.values():
        if one.name in ("self", "cls") or one.name.startswith("_"):
            continue
        written = fields.get(one.name, ("", ""))[0] or (one.annotation if one.annotation is not one.empty else "")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        rows[stars + one.name] = _type(written), "" if one.default is one.empty else _default(one.default)
    return rows


def _default(value: Any) -> str:
    text = repr(value)
    return "…" if "<" in text or len(text) > 40 else text


def _type(annotation: Any) -> str:
    """`int | None` as "int or None", without modules, validators and quotes."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    try:
        return _written(ast.parse(text.strip("'\""), mode="eval").body)
    except SyntaxError:
        return text


def _written(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left, _, right):
            text = f"{_written(left)} or {_written(right)}"
        case ast.Attribute(attr=name) | ast.Name(id=name):
            text = PLAIN.get(name, name)
        case ast.Subscript(value, inside):
            parts = [_written(one) for one in (inside.elts if isinstance(inside, ast.Tuple) else [inside])]
            name = _written(value)
            text = f"{name}[{', '.join(parts)}]"
            if name in ("Annotated", "SkipValidation", "Final", "ClassVar"):
                text = parts[0]
            elif name == "Literal":
                text = " or ".join(parts)
        case _:
            text = "..." if isinstance(node, ast.Constant) and node.value is ... else ast.unparse(node)
    return text


def _fields(found: type) -> dict[str, tuple[str, str]]:
    """Of a class and those that it is made from: field → its type as written, and the comment at it or above it."""
    rows: dict[str, tuple[str, str]] = {}
    for one in reversed(found.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(one))
            body = ast.parse(source).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):
            continue
        comments = _comments(source)
        for item in body.body if isinstance(body, ast.ClassDef) else []:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                own = " ".join(
                    comments[line][1] for line in range(item.lineno, (item.end_lineno or 0) + 1) if line in comments
                )
                line, above = item.lineno - 1, []
                while not own and line in comments and comments[line][0]:
                    above.insert(0, comments[line][1])
                    line -= 1
                rows[item.target.id] = ast.unparse(item.annotation), own or " ".join(above)
    return rows


def _comments(source: str) -> dict[int, tuple[bool, str]]:
    """Line → whether the comment stands alone on it, and the comment."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "fmt:" not in token.string and "type: ignore" not in token.string:
            text = re.sub(r"\s*#? ?noqa.*", "", token.string.lstrip("# "))
            found[token.start[0]] = token.line.lstrip().startswith("#"), text.lstrip("… ")
    return found


def _signature(name: str, rows: Mapping[str, Row]) -> str:
    """The call with what must be given, and a few of what may be."""
    needed = [one for one, (_, default) in rows.items() if not default and not one.startswith("*")]
    optional = [f"{one}={default}" for one, (_, default) in rows.items() if default]
    some = optional if len(optional) <= SHOWN else [*optional[:SHOWN], "…"]
    text = f"{name}({', '.join([*needed, *some])})"
    return text if len(text) <= WIDTH else f"{name}({', '.join([*needed, *(['…'] if optional else [])])})"


def _described(doc: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """A docstring without what it says of single parameters, and that: "k: how many. rank: …".

    Behind the last parameter of a paragraph stand sentences about the whole: only its first sentence is taken.
    """
    plain = [re.escape(name.lstrip("*")) for name in names]
    if not plain:
        return doc, {}
    word = f"(?:{'|'.join(sorted(plain, key=len, reverse=True))})"
    begins = re.compile(rf"(?:(?<=^)|(?<=[.;)] )|(?<=\n))({word}(?:, {word})*): ")
    meanings: dict[str, str] = {}
    kept = []
    for paragraph in doc.split("\n\n"):
        if paragraph.lstrip().startswith(("|", "-", "`")) or "\n    " in paragraph:
            kept.append(paragraph)
            continue
        text = paragraph.replace("\n", " ")
        found = list(begins.finditer(text))
        rest = text[: found[0].start()].strip() if found else text
        for index, one in enumerate(found):
            meaning = text[one.end() : found[index + 1].start() if index + 1 < len(found) else len(text)].strip()
            if index + 1 == len(found):
                first = re.match(r".*?(?:[.](?= [A-Z`])|$)", meaning)
                cut = first.end() if first else len(meaning)
                rest, meaning = f"{rest} {meaning[cut:].strip()}".strip(), meaning[:cut]
            for name in one[1].split(", "):
                meanings[name] = meaning.rstrip(";. ")
        if rest:
            kept.append(rest)
    return "\n\n".join(kept), meanings


def _table(
    rows: Mapping[str, Row], meanings: Mapping[str, str], fields: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    if not rows:
        return
    yield "| parameter | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, (kind, default) in rows.items():
        plain = name.lstrip("*")
        meaning = meanings.get(plain) or fields.get(plain, ("", ""))[1]
        shown = f"`{default}`" if default else "" if name.startswith("*") else "required"
        yield f"| `{name}` | {_cell(kind)} | {_cell(shown)} | {_cell(meaning)} |"
    yield ""


def _cell(text: str) -> str:
    """What stands in a table: a bar ends a cell, and angle brackets are a tag."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _methods(members: Mapping[str, Any], name: str) -> Iterator[str]:
    lines = []
    for inner, member in members.items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        plain = getattr(plain, "func", plain)  # a cached property
        meaning = (inspect.getdoc(plain) or "").split("\n\n")[0].replace("\n", " ")
        if inspect.isfunction(plain) and meaning:
            called = "" if isinstance(member, property) or hasattr(member, "func") else _short(plain)
            lines.append(f"| `{name}.{inner}{called}` | {_cell(meaning)} |")
        elif isinstance(member, property) and meaning:
            lines.append(f"| `{name}.{inner}` | {_cell(meaning)} |")
    if lines:
        yield from ("| attribute or method | meaning |", "|---|---|", *lines, "")


def _short(function: Any) -> str:
    names = [
        ("" if one.default is one.empty else "=").join(
            [one.name, "" if one.default is one.empty else _default(one.default)]
        )
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "cls") and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    needed = [name for name in names if "=" not in name]
    optional = [name for name in names if "=" in name]
    some = optional if len(optional) <= 3 else [*optional[:3], "…"]
    return f"({', '.join([*needed, *some])})"
