"""`sinkscope report RUN`, `figures RUN`, `view RUN`: a run as one page, as figures for print, as a page served here."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from sinkscope.cli import options
from sinkscope.cli.app import command
from sinkscope.cli.options import JsonFlag, refuse, writable
from sinkscope.cli.screen import print_result, waiting
from sinkscope.errors import ReportError

if TYPE_CHECKING:
    from sinkscope.report.server import Server

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
        if run.is_file():
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
    what: Annotated[
        list[str],
        Argument(help="A run, the file of a trace, or one or two models to watch.", metavar="RUN|FILE|MODEL [MODEL]"),
    ],
    port: Annotated[int, Option(help="Port on this machine; 0 is any free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, Option(help="Open a browser.")] = True,
    dtype: options.Dtype = None,
    device: options.Device = None,
    as_json: JsonFlag = False,
) -> None:
    """Serve a page to this machine only, until Ctrl-C: a finished run, or a model that you watch and mask."""
    with waiting("reading …"):
        server = _server(what, port, dtype, device)
    with server:
        print_result(as_json, {"address": server.address}, f"{server.address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(server.address)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


def _server(what: list[str], port: int, dtype: str | None, device: str | None) -> Server:
    """The page of a recording where a run or a trace is named, else of models."""
    path = Path(what[0])
    recorded = (
        (path.is_file() and path.suffix != ".gguf") or (path / "results.json").is_file() or (path / "traces").is_dir()
    )
    if recorded:
        from sinkscope.report.view import Viewer

        refuse(ReportError, "with a recording", dtype=dtype, device=device)
        if len(what) > 1:
            raise ReportError(f"Expected one run or trace, got {len(what)}; name models to watch them side by side.")
        return Viewer(path, port)
    from sinkscope.report.live import Live

    if len(what) > 2:
        raise ReportError(f"Expected one or two models, got {len(what)}.")
    return Live(what, port, dtype, device)
