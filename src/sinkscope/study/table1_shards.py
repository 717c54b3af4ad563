"""Runs of `table1` in shards, which are joined to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope import io
from sinkscope.errors import StudyError
from sinkscope.evals.answers import Answers
from sinkscope.evals.table1 import table1
from sinkscope.interventions.conditions import condition_from_dict
from sinkscope.io.reading import read_object
from sinkscope.study.shards import FOLDER, Shard
from sinkscope.study.store import as_json

OWN = ("data", "examples", "device")  # words that may differ from machine to machine


def run_shard(models: Sequence[str], out: Path, shard: Shard, words: dict[str, Any], **here: Any) -> Path:
    """Answer one shard's batches into a folder, which others may write to at the same time; `merge` scores them.

    words: of `table1`, such as tasks and ks; they are kept beside the answers, so that `merge` can ask for the same.
    here: words that are about this process, such as the engine.
    """
    if named := [name for name in ("data", "examples") if words.get(name)]:
        words = {**words, **{name: str(words[name]) for name in named}}
    kept = {**words, "models": list(models), "conditions": [one.to_dict() for one in words.get("conditions", ())]}
    mark, note = out / FOLDER / f"{shard.index}-of-{shard.count}.json", {"of": shard.count, "words": kept}
    io.write(mark, as_json({**note, "finished": False}))
    table1(models, out, part=(shard.index, shard.count), **words, **here)
    io.write(mark, as_json({**note, "finished": True}))
    return out


def has_shards(folder: Path) -> bool:
    """Whether the shards in it are of table1."""
    marks = list((folder / FOLDER).glob("*-of-*.json"))
    return bool(marks) and "words" in read_object(marks[0], 1 << 20, StudyError)


def merge(folders: Sequence[Path], out: Path, **here: Any) -> dict[str, Any]:
    """Join the answers of all shards and score them: what comes out is what the whole run would have written."""
    marks = {
        path.stem: read_object(path, 1 << 20, StudyError)
        for folder in folders
        for path in sorted((folder / FOLDER).glob("*-of-*.json"))
    }
    asked = [{name: value for name, value in one["words"].items() if name not in OWN} for one in marks.values()]
    counts = {one["of"] for one in marks.values()}
    if len(counts) != 1 or any(one != asked[0] for one in asked):
        raise StudyError("Expected shards of one table1 run, and these were asked for different things; name others.")
    count = counts.pop()
    missing = [f"{i}/{count}" for i in range(1, count + 1) if not marks.get(f"{i}-of-{count}", {}).get("finished")]
    if missing:
        raise StudyError(f"Not finished: shard {', '.join(missing)}; run it with --shard, or name its folder.")
    for folder in folders:
        for path in sorted(folder.glob("*/*/requests*.jsonl")):
            into = Answers(out / path.parent.relative_to(folder) / "requests.jsonl")
            into.add_all((one["key"], one) for one in Answers(path).starting("") if into.get(one["key"]) is None)
    words = dict(next(iter(marks.values()))["words"])
    models, conditions = words.pop("models"), [condition_from_dict(one) for one in words.pop("conditions")]
    return table1(models, out, conditions=conditions, **words, **here)
