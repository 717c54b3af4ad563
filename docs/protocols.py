"""Write docs/reference/protocols.md: every protocol with its settings, and its prompts for one problem of each benchmark.

    python docs/protocols.py --data DATA

DATA holds gsm8k_test.jsonl, gsm8k_train.jsonl, HumanEval.jsonl.gz, and the real tokenizers in tokenizers/llada and /dream.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from sinkscope.models.load import load_config_only
from sinkscope.study.table1 import first_prompts
from sinkscope.tasks.benchmarks import Benchmark, BenchmarkPlan
from sinkscope.tasks.protocol import BENCHMARKS, PROTOCOLS, Protocol, Setup, read_protocol

PAGE = Path(__file__).parent / "reference" / "protocols.md"
REAL = ("llada", "dream")  # families whose real tokenizer is at hand
STAND_IN = {"mmada": "tiny-mmada", "llama": "tiny-llama", None: "tiny-llama"}
HEAD = """# Protocols

<!-- Written by docs/protocols.py from the protocol files and the code that renders prompts. -->

How each checkpoint is asked GSM8K and HumanEval. `sinkscope eval` and `sinkscope table1` choose by the exact checkpoint;
`--protocol NAME` chooses another, and a checkpoint without one takes `harness`. A published score is shown for exactly its
checkpoint under exactly its protocol. To compare a prompt with its authors':
`sinkscope eval --model … --tasks gsm8k --show-prompt`.

A protocol is a file in `src/sinkscope/tasks/protocols/`; a new one is read automatically, and `--protocol my.yaml` takes yours.
Its fields are those of `Protocol` and `Setup` in `src/sinkscope/tasks/protocol.py`.

The prompts below are those of the first problem. LLaDA's and Dream's are rendered by their real tokenizers; of MMaDA and
Llama, whose tokenizers were not at hand, the turns are shown. OpenCompass's worked examples are stand-ins here.
"""


def page(data: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        worked = Path(folder) / "worked.py"
        rows = [{"HUMAN": f"(OpenCompass's question {n})", "BOT": f"(its worked answer {n})\n"} for n in range(1, 5)]
        worked.write_text(
            "".join(f"dict(role={role!r}, prompt={said!r})\n" for row in rows for role, said in row.items())
        )
        parts = [HEAD, _overview()]
        for name in sorted(PROTOCOLS):
            parts.append(_protocol(read_protocol(name), data, worked))
    return "\n".join(parts)


def _overview() -> str:
    lines = ["| protocol | default of | GSM8K | HumanEval |", "|---|---|---|---|"]
    for name in sorted(PROTOCOLS):
        found = read_protocol(name)
        own = list(dict.fromkeys(one for setup in found.setups for one in setup.checkpoints)) if found.default else []
        scores = [", ".join(_scores(found, benchmark)) or "–" for benchmark in BENCHMARKS]
        lines.append(f"| [{name}](#{name}) | {', '.join(own) or '–'} | {' | '.join(scores)} |")
    return "\n".join(["Published scores without masking, in percent:", "", *lines, ""])


def _scores(found: Protocol, benchmark: str) -> list[str]:
    several = sum(bool(one.published) for one in found.setups if one.benchmark == benchmark) > 1
    return [
        " / ".join(f"{score.score:g}" for score in one.published) + (f" ({one.family})" if several else "")
        for one in found.setups
        if one.benchmark == benchmark and one.published
    ]


def _protocol(found: Protocol, data: Path, worked: Path) -> str:
    parts = [f"## {found.name}", "", found.about, "", f"Source: {found.source}.", ""]
    if found.assumptions:
        parts += ["Assumptions:", "", *(f"- {one}" for one in found.assumptions), ""]
    for setup in found.setups:
        title = f"{setup.benchmark}" + (f", {', '.join(setup.checkpoints)}" if setup.checkpoints else "")
        parts += [f"### {found.name}: {title}", "", _settings(setup), "", _prompt(found, setup, data, worked), ""]
    return "\n".join(parts)


def _settings(setup: Setup) -> str:
    shown = {
        "task of the harness": setup.task,
        "examples": "as the task has it" if setup.examples is None else setup.examples,
        "turns": setup.turns,
        "system prompt": setup.system or "none beside the template's own",
        "begin token": "added" if setup.begin else "as the tokenizer or template has it",
        "decoding": ", ".join(f"{name} {value}" for name, value in setup.decode.items()),
        "stop strings": "the task's" if setup.stops is None else ", ".join(map(repr, setup.stops)) or "none",
        "extraction": "the task's"
        if setup.extract is None
        else f"last match of `{setup.extract.replace('|', chr(92) + '|')}`",
        "program": setup.sanitize or "as the task has it",
        "published": "; ".join(f"{one.score:g} by {one.by}" for one in setup.published) or "unknown",
    }
    if setup.benchmark == "gsm8k":
        del shown["program"]
    else:
        del shown["extraction"]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in shown.items())])


def _prompt(found: Protocol, setup: Setup, data: Path, worked: Path) -> str:
    words = {"protocol": found.name, "data": data, "examples": worked if setup.worked else None}
    if setup.family in REAL:
        (shown,) = first_prompts(str(data / "tokenizers" / str(setup.family)), [setup.benchmark], **words)
        text = str(shown["text"])
    else:
        model = load_config_only(STAND_IN[setup.family])
        if setup.turns in ("multi", "single") and model.tokenizer is not None:
            model.tokenizer.chat_template = "stand-in"  # only the turns are asked for
        turns = Benchmark(BenchmarkPlan(setup.benchmark, found, data, words["examples"]), model).messages()
        text = "\n".join(f"[{turn['role'] or 'text'}]\n{turn['content']}" for turn in turns)
    return f"<details><summary>Prompt</summary>\n\n````text\n{text}\n````\n\n</details>"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    PAGE.write_text(page(parser.parse_args().data), encoding="utf-8")
