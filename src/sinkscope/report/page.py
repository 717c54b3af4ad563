"""The explorer's files put together into one page that needs nothing else and may ask for nothing else.

The scripts are written as modules, one idea per file. For the page they are joined in the order of their imports, each in
a scope of its own. Model text gets into the page
only as JSON inside a data block, with every `<` written as an escape. The page's policy names the hash of the one
script that may run: text could not become code even if it broke out.
"""

from __future__ import annotations

import base64
import dataclasses
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

from sinkscope.sinks import rules as sink_rules

START = "main.js"
STYLES = ("palette.css", "layout.css", "panels.css", "canvas.css", "lens.css", "overview.css")
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w/-]+\.js)";\n', re.M)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class|let) (\w+)", re.M)


def _source(name: str) -> str:
    return (files("sinkscope.report") / "explorer" / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """All modules as one script, each in a scope of its own, after those that it imports."""
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

    visit(START)
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
    for rule in sink_rules.rules().values():
        forms = [dataclasses.asdict(form) for form in rule.forms]
        found += [{**form, **{name: form[name].split() for name in ("scale", "limit")}} for form in forms]
        if not forms:
            owner = "sk" if rule.__module__.startswith("sinkscope.") else rule.__module__
            about = f"not computed in the browser: trace.sinks({owner}.{rule.__name__}()) marks its sinks"
            label = f"{rule.name.replace('_', ' ')} (Python only)"
            found.append({"unit": rule.name, "label": label, "about": about, "limit": None})
    return found


def build(data: dict[str, Any], blobs: Iterable[str] = (), title: str = "sinkscope", remote: bool = False) -> str:
    """The whole page. data: what `main.js` reads, without the sink rules; blobs: a packed sample each.

    remote: samples come from the server.
    """
    server = "self" if remote else "none"
    policy = (
        f"default-src 'none'; script-src '{_hash(script())}'; style-src '{_hash(style())}'; img-src data: blob:; "
        f"connect-src '{server}'; base-uri 'none'; form-action 'none'"
    )
    packed = "".join(f'<script type="text/plain" id="blob-{i}">{blob}</script>\n' for i, blob in enumerate(blobs))
    slots = {
        "policy": policy,
        "title": html.escape(title),
        "style": style(),
        "data": data_block({**data, "rules": rules()}),
        "blobs": packed,
        "script": script(),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], _source("page.html"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
