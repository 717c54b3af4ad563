"""`sinkscope report RUN`, `figures RUN`, `view RUN`: a run as one page, as figures for print, as a page served here."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.screen import JsonFlag, output, print_json, waiting

RunFolder = Annotated[Path, typer.Argument(help="Folder of a run: results.json, traces/*.safetensors, or both.")]


def register(app: typer.Typer) -> None:
    app.command()(report)
    app.command()(figures)
    app.command()(view)


def report(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it. [RUN/report.html]")] = None,
    megabytes: Annotated[float, typer.Option(help="How large the file may be.", min=0.5)] = 15.0,
    as_json: JsonFlag = False,
) -> None:
    """Write one page that shows a run, opens anywhere and needs no network."""
    from sinkscope.report import write

    with waiting("writing the report …"):
        path = write(run, out, int(megabytes * 1e6))
    if as_json:
        print_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        output().print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True)


def figures(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write to. [RUN/figures]")] = None,
    format: Annotated[str, typer.Option(help="pdf, svg or png.")] = "pdf",
    as_json: JsonFlag = False,
) -> None:
    """Draw the paper's figures from a run, for print."""
    from sinkscope.report.printing import figures as draw

    with waiting("drawing …"):
        paths = draw(run, out, format)
    if as_json:
        print_json({"figures": [str(path) for path in paths]})
    else:
        for path in paths:
            output().print(str(path), markup=False, soft_wrap=True)


def view(
    run: RunFolder,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 is any free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Look at a run that is too big for one file, served to this machine only, until Ctrl-C."""
    from sinkscope.report.view import Viewer

    with waiting("reading the run …"):
        viewer = Viewer(run, port)
    with viewer:
        if as_json:
            print_json({"address": viewer.address})
        else:
            output().print(f"{viewer.address}\nCtrl-C ends it.", markup=False, soft_wrap=True)
        if browser:
            webbrowser.open(viewer.address)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return
