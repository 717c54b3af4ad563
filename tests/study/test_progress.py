"""The time left, and what is being loaded by its name."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from sinkscope.progress import UnitBar, UnitLog
from sinkscope.study.run import run
from sinkscope.study.schema import Study


def test_messages_name_what_is_loading_and_progress_may_be_told_the_time_left(
    small: dict[str, object], family: dict[str, str], tmp_path: Path
) -> None:
    study = Study.from_dict(
        {**small, "likelihood": {"models": []}, "trace": {"problems": 0}, "mechanism": {"problems": 0}}
    )
    study = study.changed(models=[family["llada"]], problems=2, tasks=["recall"])
    messages: list[str] = []
    times: list[float | None] = []
    stream = io.StringIO()
    log = UnitLog(stream)

    def on_progress(done: int, total: int, left: float | None = None) -> None:
        times.append(left)
        log.on_progress(done, total, left)

    run(study, tmp_path, workers=1, on_message=messages.append, on_progress=on_progress)
    assert messages[0] == "loading small-llada"
    assert times[0] is None and times[-1] == 0 and all(time is not None for time in times[1:])
    assert "units" in stream.getvalue()


def test_names_of_models_cannot_steer_the_terminal() -> None:
    stream = io.StringIO()
    UnitLog(stream).on_message("loading \x1b[2Jmodel")
    assert stream.getvalue() == "loading �[2Jmodel\n"
    console = Console(file=io.StringIO(), force_terminal=False)
    bar = UnitBar(console)
    with bar.progress:
        bar.on_message("left out: \x9b31m[red]model")
    assert "�31m[red]model" in console.file.getvalue()  # type: ignore[attr-defined]
