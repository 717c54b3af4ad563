"""Command lines: every option of every command with values of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from contract import fuzz, told
from hypothesis import given
from hypothesis import strategies as st

from golden_sets import HERE
from sinkscope.cli.app import build

COMMANDS: dict[str, Any] = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
LEFT_OUT = {"--help", "--browser", "--no-browser"}  # a browser is no place for a fuzzer
PATHS = {"--out", "-o", "--parquet"}  # written only inside the test's own folder
ODD = st.one_of(
    st.sampled_from(
        ["", " ", "-", "--", "0", "-1", "²", "1e9", "nan", "inf", "-0.0", "99999999999999999999", "0x10", "1,5", ",", "[",
         "length=[", "length=8", "=", "a=b=c", "&a [*a]", "\x1b[31m", "\x00", "\x9b2J", "\u202e", "\udcff", "x" * 5000,
         "/", ".", "..", "/dev/null", "/proc/self/mem", "a/b", "tiny", "none", "auto", "float16", "cpu", "meta", "cuda:99",
         "1/0", "0.0", "99.0", "3.x"]
    ),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip


@st.composite
def lines(draw: st.DrawFn, folder: str) -> list[str]:
    """A command, some of its options with odd values, and arguments that name nothing that is there."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    words = [name]
    params = [one for one in COMMANDS[name].params if one.param_type_name == "option"]
    for one in draw(st.lists(st.sampled_from(params), max_size=4)) if params else ():
        spelling = draw(st.sampled_from([*one.opts, *one.secondary_opts]))
        if LEFT_OUT & {*one.opts, *one.secondary_opts}:
            continue
        value = [] if one.is_flag else [draw(ODD)]
        words += [spelling, *([f"{folder}/{len(words)}"] if PATHS & {*one.opts} else value)]
    # A name of a model, study, run or recipe always comes, and is never one that exists: nothing long is begun.
    words += draw(st.lists(ODD.filter(lambda text: text not in ("/", ".", "..", "")), max_size=2))
    missing = "no-such-thing/" + draw(st.sampled_from(["x", "\x1b[2J", "\udcff", "é" * 300]))
    models = {"eval": ["--model", missing], "table1": ["--models", missing]}
    return words + models.get(
        name, ["--", missing, missing] if name in ("trace", "generate", "compare") else ["--", missing]
    )


@fuzz
@given(data=st.data())
def test_any_command_line_is_a_result_or_one_sentence(data: st.DataObject, tmp_path: Path) -> None:
    words = data.draw(lines(str(tmp_path)))
    if words[0] == "models":
        words = words[:-2] if words[-2] == "--" else words
    told(*words)


NUMBER = st.one_of(st.integers(-2, 20), st.sampled_from([0, 10**9, 2**63, -(2**40)])).map(str)
SETTINGS = {
    "--length": NUMBER, "--block": NUMBER, "--steps": NUMBER, "--seed": NUMBER, "--mask-sinks": NUMBER, "--budget": NUMBER,
    "--temperature": st.one_of(st.floats().map(str), NUMBER), "--form": st.sampled_from(["auto", "full", "summary", "x"]),
    "--map": st.builds("{}.{}".format, st.integers(-1, 5), st.integers(-1, 9)),
    "--dtype": st.sampled_from(["float32", "x", "int8"]),
}  # fmt: skip


@fuzz
@given(
    chosen=st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.none(), max_size=3),
    data=st.data(),
    prompt=st.one_of(
        st.just("[5, 9, 2]"), st.sampled_from(["[5, -1]", "[9999999]", "[٣]", "", "[" * 400, "[[5, 9]]"]), ODD
    ),
)
def test_a_trace_is_made_or_refused(chosen: dict[str, None], data: st.DataObject, prompt: str, tmp_path: Path) -> None:
    words = [part for name in chosen for part in (name, data.draw(SETTINGS[name]))]
    if "--length" not in chosen:
        words += ["--length", "8"]
    file, ids = tmp_path / "one.trace", tmp_path / "ids.json"
    ids.write_bytes(prompt.encode(errors="replace"))
    found = told("trace", str(HERE / "llada"), *words, "-o", str(file), "--json", "--", f"@{ids}")
    assert found.code == 2 or file.is_file()


@fuzz
@given(
    options=st.lists(
        st.tuples(
            st.sampled_from(["--epsilon", "--unit", "--group", "--rule", "--top"]),
            st.one_of(
                ODD, st.sampled_from(["threshold", "zscore", "head_share", "sum", "percent", "masked", "3", "0.5"])
            ),
        ),
        max_size=4,
    )
)
def test_sinks_are_found_or_the_rule_is_refused(options: list[tuple[str, str]], trace_file: Path) -> None:
    told("sinks", *(word for option in options for word in option), "--", str(trace_file))


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "one.trace"
    (ids := file.with_name("ids.json")).write_text("[5, 9, 2]")
    assert told("trace", str(HERE / "llada"), f"@{ids}", "--length", "8", "-o", str(file)).code == 0
    return file
