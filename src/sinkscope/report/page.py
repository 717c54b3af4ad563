"""The explorer's files put together into one page that needs nothing else and may ask for nothing else.

The scripts are written as modules, one idea per file. For the page they are joined in the order of their imports, each in
a scope of its own. Model text gets into the page only as JSON inside a data block, with every `<` written as an escape.
The page's policy names the hash of the one script that may run: text could not become code even if it broke out.

Arrays get into it as compact bytes, which `decode.js` undoes step for step. Floats are split into byte planes (all first
bytes, then all second ones): exponents compress well, mantissas do not, and apart they do not spoil each other. Codes that
change slowly are kept as differences from the step before.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import html
import json
import math
import posixpath
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkscope.sinks import rules as sink_rules

Array = npt.NDArray[Any]
SPAN = 12.0  # octaves below the largest value that quantised scores resolve; anything smaller is 0
START = "main.js"
STYLES = ("palette.css", "layout.css", "panels.css", "canvas.css", "lens.css", "overview.css", "live.css")
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w/-]+\.js)";\n', re.M)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class|let) (\w+)", re.M)


def _source(name: str) -> str:
    return (files("sinkscope.report") / "explorer" / name).read_text(encoding="utf-8")


@cache
def script(start: str = START) -> str:
    """The module `start` and all that it imports as one script, each in a scope of its own, after those that it imports."""
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        done[name] = ""
        source = _source(name)

        def taken(match: re.Match[str]) -> str:
            needed = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
            visit(needed)
            return f'const {{{match[1].replace(" as ", ": ")}}} = modules["{needed}"];\n'

        body = re.sub(r"^export ", "", IMPORT.sub(taken, source), flags=re.M)
        given = ", ".join(EXPORT.findall(source))
        del done[name]  # put it behind what it needs
        done[name] = f'modules["{name}"] = (() => {{\n{body}return {{ {given} }};\n}})();\n'

    visit(start)
    return "const modules = {};\n" + "".join(done.values())


@cache
def style() -> str:
    return "".join(map(_source, STYLES))


def data_block(value: Any) -> str:
    """JSON that is safe inside a script element: pure ASCII, and nothing that ends or opens an element."""
    try:
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a study may have nothing to say somewhere; browsers know no NaN
        return data_block(_finite(value))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rules() -> list[dict[str, Any]]:
    """Every registered sink rule as the explorer offers it; one without a form is named, and cannot be chosen."""
    found: list[dict[str, Any]] = []
    for rule in sink_rules.RULES.values():
        forms = [dataclasses.asdict(form) for form in rule.forms]
        found += [{**form, **{name: form[name].split() for name in ("scale", "limit")}} for form in forms]
        if not forms:
            owner = "sk" if rule.__module__.startswith("sinkscope.") else rule.__module__
            about = f"not computed in the browser: trace.sinks({owner}.{rule.__name__}()) marks its sinks"
            label = f"{rule.name.replace('_', ' ')} (Python only)"
            found.append({"unit": rule.name, "label": label, "about": about, "limit": None})
    return found


def build(
    data: dict[str, Any], blobs: Iterable[str] = (), title: str = "sinkscope", remote: bool = False, start: str = START
) -> str:
    """The whole page. data: what the module `start` reads, without the sink rules; blobs: a packed sample each.

    remote: samples come from the server.
    """
    server = "self" if remote else "none"
    policy = (
        f"default-src 'none'; script-src '{_hash(script(start))}'; style-src '{_hash(style())}'; img-src data: blob:; "
        f"connect-src '{server}'; base-uri 'none'; form-action 'none'"
    )
    packed = "".join(f'<script type="text/plain" id="blob-{i}">{blob}</script>\n' for i, blob in enumerate(blobs))
    slots = {
        "policy": policy,
        "title": html.escape(title),
        "style": style(),
        "data": data_block({**data, "rules": rules()}),
        "blobs": packed,
        "script": script(start),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], _source("page.html"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


# ---- arrays


@dataclasses.dataclass
class Blob:
    """Named arrays packed one behind the other; `index` tells the page what lies where."""

    parts: list[bytes] = dataclasses.field(default_factory=list)
    index: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, array: Array, coding: str) -> None:
        """Pack an array; coding: "planes" (bytes split) or "steps" (differences along the next to last axis)."""
        packed = planes(array) if coding == "planes" else differences(array)
        self.index[name] = {
            "type": array.dtype.str[1:],
            "shape": list(array.shape),
            "coding": coding,
            "offset": sum(map(len, self.parts)),
            "bytes": len(packed),
        }
        self.parts.append(packed)

    def text(self) -> str:
        """All parts as one gzip stream, which browsers unpack themselves, in text for a page."""
        return base64.b64encode(gzip.compress(b"".join(self.parts), 6, mtime=0)).decode("ascii")


def planes(array: Array) -> bytes:
    """All first bytes of the (little-endian) values, then all second ones, and so on."""
    plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return plain.view(np.uint8).reshape(-1, array.dtype.itemsize).T.tobytes()


def differences(array: Array) -> bytes:
    """Each step minus the one before, modulo the type's size, along the next to last axis; then byte planes."""
    change = array.copy()
    change[..., 1:, :] -= array[..., :-1, :]
    return planes(change)


def quantise(values: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Codes and the table that says what they mean: 0, then even steps of the logarithm up to the largest value, 3.3 % apart."""
    top = float(values.max()) if values.size else 0.0
    table = np.zeros(256, dtype=np.float32)
    if top <= 0:
        return np.zeros(values.shape, dtype=np.uint8), table
    table[1:] = top * 2.0 ** (SPAN * (np.arange(255) / 254 - 1))
    with np.errstate(divide="ignore"):
        code = np.rint((np.log2(values / top) / SPAN + 1) * 254) + 1
    return np.clip(code, 0, 255).astype(np.uint8), table
