"""A study in parts that know nothing of each other, for clusters that only start jobs; and the parts joined."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sinkscope.decoding.settings import Decode
from sinkscope.errors import StudyError
from sinkscope.files import read_object, report_damage
from sinkscope.study.run import assemble, check_unit, need_a_model, open_run, read_study
from sinkscope.study.schema import Study
from sinkscope.study.store import Store, as_json, list_versions
from sinkscope.study.units import ModelInfo, Unit, units_of, weigh

MOST = 100_000  # shards
FOLDER = "shards"  # of the run folder: a file for each shard that was begun, which says whether it is finished


@dataclass(frozen=True)
class Shard:
    """One part of `count`, counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]) <= MOST:
            raise StudyError(f"Expected a shard such as 3/16, the third of sixteen, got {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def of(self, study: Study, units: Sequence[Unit], models: Sequence[ModelInfo]) -> list[Unit]:
        """Every count-th unit, the longest first, so that shards take about the same time; run in the plan's order."""
        known = {info.asked: info for info in models}
        weights = [weigh(study, unit, known[unit.model]) for unit in units]
        longest = sorted(range(len(units)), key=lambda place: -weights[place])
        return [units[place] for place in sorted(longest[self.index - 1 :: self.count])]


def run_shard(study: Study | str, shard: Shard, out: Path | str | None = None, **words: Any) -> Path:
    """Run one shard into a folder, which other shards may write to at the same time; `merge` makes the tables.

    words: of `run`, such as engine and workers.
    """
    with open_run(read_study(study), out, shard=str(shard), **words) as work:
        units = shard.of(work.study, work.units, work.models)
        if work.study.sequential is not None:
            raise StudyError("Shards cannot look at each other's answers: leave sequential stopping out.")
        with _marked(work.store.folder, shard, {"shard": shard.index, "of": shard.count, "units": len(units)}):
            work.run_units(units)
    return work.store.folder


@contextmanager
def _marked(folder: Path, shard: Shard, note: Mapping[str, Any]) -> Iterator[None]:
    """A file that says of a shard that it was begun here, and at the end that it is finished."""
    store, mark, started = Store(folder), f"{FOLDER}/{shard.index}-of-{shard.count}.json", time.time()
    store.write(mark, as_json({**note, "finished": False}))
    yield
    store.write(mark, as_json({**note, "seconds": round(time.time() - started, 1), "finished": True}))


def _refuse_unfinished(folders: Sequence[Path]) -> None:
    """Name the shards that were never begun or did not come to their end, by what was noted of each, such as 3-of-16."""
    paths = [path for folder in folders for path in sorted((folder / FOLDER).glob("*-of-*.json"))]
    marks = {path.stem: read_object(path, 1 << 20, StudyError) for path in paths}
    counts = {one.get("of") for one in marks.values()}
    count = counts.pop() if len(counts) == 1 else 0
    if not isinstance(count, int) or not 1 <= count <= MOST:
        return
    missing = [f"{i}/{count}" for i in range(1, count + 1) if not marks.get(f"{i}-of-{count}", {}).get("finished")]
    if missing:
        told = f"shard {', '.join(missing)}; run it with --shard {missing[0]}, or name its folder."
        raise StudyError(f"Not finished: {told}")


def merge(folders: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Join the folders of a run's shards, and finish its tables: what comes out is what the whole run would have been."""
    parts = [Store(folder) for folder in folders]
    if not parts or (out is None and len(parts) > 1):
        raise StudyError(f"Expected run folders to merge, and --out where there are several, got {len(parts)} folders.")
    text, first = parts[0].read_plan()
    about = {name: value for name, value in first.items() if name not in ("finished", "seconds", "shards")}
    for part in parts:
        advice = "leave it out, or run its shard again as the others, with the versions that merge it"
        part.require(text, {**about, "versions": list_versions()}, advice, ("schema", "study", "backend"))
    study = Study.load(parts[0].folder / "study.yaml")
    with report_damage(f"{parts[0].folder / 'run.json'}", StudyError):
        models = models_in(about["models"])
        units = units_of(study, models)
    where = _found(parts, units)
    if missing := [unit.id for unit in units if unit.id not in where]:
        _refuse_unfinished([part.folder for part in parts])
        raise StudyError(f"{len(missing)} of {len(units)} units are missing, such as {missing[0]}; run what is left.")
    store = Store(parts[0].folder if out is None else out)
    with store.locked():
        store.open(text, about)
        for unit in units:
            _copy(where[unit.id], store, unit)
        for unit in units:
            check_unit(store, unit, store.load(unit))
        assemble(study, store, models, units, about)
        store.write("run.json", as_json({**about, "finished": True, "shards": len(parts)}))
    return store.folder


def models_in(listed: Any) -> list[ModelInfo]:
    """The models of run.json; whatever a plan reads of them is there, and of its kind."""
    found = TypeAdapter(list[ModelInfo]).validate_python(listed)
    for info in found:
        if any(type(info.identity[name]) is not int for name in ("parameters", "layers", "heads")):
            raise TypeError("parameters, layers and heads of a model must be whole numbers")
        for settings in info.settings.values():
            Decode.from_dict(settings)
    need_a_model(len(found), ["run.json names none"])
    return found


def _found(parts: Sequence[Store], units: Sequence[Unit]) -> dict[str, Store]:
    """Unit → the folder that has it; two folders that have it must say the same."""
    where: dict[str, Store] = {}
    for unit in units:
        for part in parts:
            if (found := part.find(unit)) is not None:
                before = where.setdefault(unit.id, part)
                if before is not part and before.load(unit) != found:
                    told = f"{before.folder} and {part.folder} hold different results of {unit.id}"
                    raise StudyError(f"{told}; remove the wrong one.")
    return where


def _copy(part: Store, store: Store, unit: Unit) -> None:
    """The unit's file and its traces, traces first: a unit that is there is whole."""
    if part.folder.resolve() == store.folder.resolve():
        return
    for name in part.load(unit).get("saved", []):
        path = part.folder / "traces" / Path(name).name
        if not path.is_file():
            raise StudyError(f"{unit.id} in {part.folder} names a trace that is not there, {path.name}; copy it too.")
        store.write(f"traces/{path.name}", path.read_bytes())
    store.write(f"units/{unit.id}.json", (part.units / f"{unit.id}.json").read_bytes())
