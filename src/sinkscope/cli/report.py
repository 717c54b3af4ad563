"""`sinkscope report RUN`, `figures RUN`, `view RUN`: a run as one page, as figures for print, as a page served here."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from sinkscope.cli.app import command
from sinkscope.cli.options import JsonFlag, refuse, writable
from sinkscope.cli.screen import print_result, waiting
from sinkscope.errors import ReportError

RunFolder = Annotated[Path, Argument(help="Folder of a run, or the file of a trace.", metavar="RUN|FILE")]


@command()
def report(
    run: RunFolder,
    out: Annotated[
        Path | None, Option("--out", "-o", help="File. Default: RUN/report.html.", callback=writable)
    ] = None,
    megabytes: Annotated[float, Option(help="How large the file may be.", min=0.5, max=1e6)] = 15.0,
    text: Annotated[bool, Option("--text", help="Print the summary again; write nothing.")] = False,
    full: Annotated[bool, Option("--full", help="With --text: every table.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write one page that shows a run or a trace, opens anywhere and needs no network."""
    if text:
        from sinkscope.study.run import Run

        refuse(ReportError, "with --text, which writes nothing", out=out)
        if run.is_file() and run.suffix != ".json":
            raise ReportError(f"{run} is a file, and a trace has no summary; leave --text out for its page.")
        found = Run.load(run)
        print_result(as_json, found.results, found.summary(full=full))
        return
    refuse(ReportError, "without --text", full=full)
    from sinkscope.report import write

    with waiting("writing the report …"):
        path = write(run, out, int(megabytes * 1e6))
    size = path.stat().st_size
    print_result(as_json, {"report": str(path), "bytes": size}, f"{path} ({size / 1e6:.1f} MB)")


@command()
def figures(
    run: RunFolder,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder to write to. Default: RUN/figures.")] = None,
    format: Annotated[Literal["pdf", "svg", "png"], Option(help="pdf, svg or png.")] = "pdf",
    as_json: JsonFlag = False,
) -> None:
    """Draw the paper's figures from a run, for print."""
    from sinkscope.report.printing import figures as draw

    with waiting("drawing …"):
        paths = draw(run, out, format)
    print_result(as_json, {"figures": [str(path) for path in paths]}, "\n".join(map(str, paths)))


@command()
def view(
    run: RunFolder,
    port: Annotated[int, Option(help="Port on this machine; 0 is any free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, Option(help="Open a browser.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Look at a run that is too big for one file, served to this machine only, until Ctrl-C."""
    from sinkscope.report.view import Viewer

    with waiting("reading the run …"):
        viewer = Viewer(run, port)
    with viewer:
        print_result(as_json, {"address": viewer.address}, f"{viewer.address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(viewer.address)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return
