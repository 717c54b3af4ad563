"""The run folder: finished units one file each, written whole or not at all, and guarded by a lock."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from sinkscope.errors import StudyError
from sinkscope.files import PARTIAL, describe_error, parse_yaml, read_object, read_text, write_file
from sinkscope.registry import plugin_versions
from sinkscope.study.units import Unit, kind_of
from sinkscope.tasks.benchmarks import is_benchmark

RUN_SCHEMA = 1  # of run.json
LARGEST = 128 << 20  # bytes of a unit's file, run.json or results.json
MUST_MATCH = ("models", "versions", "seed")  # what every part of a run has in common, beside its study
PACKAGES = ("sinkscope", "torch", "transformers", "numpy", "polars", "scipy")


def _asks_more(path: Path, study_yaml: str) -> bool:
    """Whether a study differs from a stored one in nothing but more problems of benchmarks, asked in the same order."""
    before, after = (parse_yaml(text, str(path), StudyError)[0] for text in (read_text(path, StudyError), study_yaml))
    if not isinstance(before, dict) or after.get("sequential") or len(before.get("tasks", ())) != len(after["tasks"]):
        return False
    pairs = list(zip(before["tasks"], after["tasks"], strict=True))
    counts = [(one.pop("problems", 0), other.pop("problems", 0), is_benchmark(one["name"])) for one, other in pairs]
    grown = all(old == new or (own and old < new) for old, new, own in counts)
    return bool(before == after and grown and any(old != new for old, new, _ in counts))


class Store:
    """One run's folder: study.yaml, run.json, units/, traces/, results.parquet, results.json."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.units = self.folder / "units"

    @contextmanager
    def locked(self, shard: str | None = None) -> Iterator[None]:
        """Keep a second process out; the kernel lets go of the lock however this one ends.

        shard: such as 3/16; other shards may come in, the same one and a whole run may not.
        """
        own = "lock" if shard is None else f"lock-{shard.replace('/', '-of-')}"
        with ExitStack() as stack:
            try:
                self.units.mkdir(parents=True, exist_ok=True)
                self._stay_inside()
                if shard is not None:
                    stack.enter_context(_locked(self.folder / "lock", fcntl.LOCK_SH, "the whole study"))
                what = "a study" if shard is None else f"shard {shard}"
                file = stack.enter_context(_locked(self.folder / own, fcntl.LOCK_EX, what))
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            except OSError as error:
                told = f"{self.folder} cannot be used ({describe_error(error)}: {error.filename})"
                raise StudyError(f"{told}; name another folder.") from None
            yield

    def _stay_inside(self) -> None:
        """Refuse a folder in which a link leads elsewhere: a run writes into its own folder only."""
        here = os.path.realpath(self.folder)
        for path in [*self.folder.iterdir(), *self.units.iterdir()]:
            # realpath goes as far as it can where links run in a circle; resolve() fails there.
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(here):
                raise StudyError(f"{path} is a link that leads out of the run folder; remove it.")

    def open(self, study_yaml: str, run: dict[str, Any], alone: bool = True) -> None:
        """Begin a run here, or make sure that the run that was begun here is the same one.

        run: what run.json holds from the start (versions, machine, models, seed); all but the machine must be the same.
        alone: nobody else writes here now, so what a killed process left half written may be removed.
        """
        for place in ("", "units/", "traces/") if alone else ():
            for partial in self.folder.glob(f"{place}*{PARTIAL}"):
                partial.unlink(missing_ok=True)
        if self.read("run.json", schema=True) is None or not (self.folder / "study.yaml").is_file():
            self.write("study.yaml", study_yaml)
            self.write("run.json", as_json(run))  # last: when it is there, the folder is a run
            return
        if _asks_more(self.folder / "study.yaml", study_yaml):
            self.write("study.yaml", study_yaml)  # the units that are there stay as they are
        self.require(study_yaml, run, "name another folder with --out, or remove this one")

    def read_plan(self) -> tuple[str, dict[str, Any]]:
        """study.yaml and run.json of a run that was begun here."""
        run, path = self.read("run.json", schema=True), self.folder / "study.yaml"
        if run is None or not path.is_file():
            raise StudyError(f"Expected a run folder, and {self.folder} lacks study.yaml or run.json; name others.")
        return read_text(path, StudyError), run

    def require(self, study_yaml: str, run: Mapping[str, Any], advice: str, more: Sequence[str] = ()) -> None:
        """Refuse a folder that holds another run; more: what must be the same beside study, models, versions and seed."""
        text, before = self.read_plan()
        sides = {name: [json.dumps(one.get(name), indent=1) for one in (before, run)] for name in (*MUST_MATCH, *more)}
        for what, (there, asked) in {"study.yaml": [text, study_yaml], **sides}.items():
            if there != asked:
                lines = difflib.unified_diff(
                    there.splitlines(), asked.splitlines(), "there", "asked for", "", "", 0, ""
                )
                told = "\n".join(list(lines)[:40])
                raise StudyError(f"{self.folder} is of another run: {what} differs:\n{told}\n{advice}.")

    def save(self, unit: Unit, result: Mapping[str, Any]) -> None:
        """Store a unit, without waiting for the disk, which would hold up hundreds of workers.

        A file that a loss of power left empty or cut is seen as such by `find`, so that its unit is run again.
        """
        outcome = {"unit": unit.to_dict(), "sha256": digest(result), "result": result}
        self.write(f"units/{unit.id}.json", json.dumps(outcome, ensure_ascii=False, allow_nan=False), durable=False)

    def load(self, unit: Unit) -> dict[str, Any]:
        found = self.find(unit)
        if found is None:
            raise StudyError(f"The unit {unit.id} is not in {self.folder}; run the study again to complete it.")
        return found

    def find(self, unit: Unit) -> dict[str, Any] | None:
        """The unit's result; None where its file is not there, holds none, or holds that of another unit."""
        try:
            found = self.read(f"units/{unit.id}.json")
        except StudyError:
            return None
        if found is None or found.get("unit") != json.loads(json.dumps(unit.to_dict())):
            return None
        result = found.get("result")
        return result if found.get("sha256") == digest(result) and kind_of(unit).complete(result) else None

    def read(self, name: str, schema: bool = False) -> dict[str, Any] | None:
        """A JSON file of the run, None where there is none; schema: it must have the number that is written here."""
        path = self.folder / name
        if not os.path.isfile(path):
            return None
        found = read_object(path, LARGEST, StudyError)
        if schema and (type(found.get("schema")) is not int or found["schema"] != RUN_SCHEMA):
            came = str(found.get("schema"))[:20]
            raise StudyError(f"{path} must have schema {RUN_SCHEMA}, not {came!r}; use the sinkscope that wrote it.")
        return found

    def write(self, name: str, content: str | bytes, durable: bool = True) -> Path:
        """A reader sees the old file, the new one, or none."""
        path = self.folder / name
        try:
            return write_file(path, content, durable)
        except OSError as error:
            raise StudyError(f"{path} could not be written ({describe_error(error)}); free space, and rerun.") from None


def _locked(path: Path, kind: int, what: str) -> IO[str]:
    """A plain file that is locked, made if it is not there; what a link points at is never touched."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    file = os.fdopen(number, "r+", encoding="utf-8", errors="replace")
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        with file:
            holder = file.read().strip() or "unknown"
        told = f"Another process (id {holder}) is running {what} in {path.parent}"
        raise StudyError(f"{told}; wait for it, or use another folder.") from None
    return file


def digest(result: Any) -> str:
    """Of a unit's result: a file in which a single number was changed must not pass for what was measured."""
    plain = json.loads(json.dumps(result))  # keys as they will be read
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def list_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree without installing
            found[name] = "unknown"
    return found | plugin_versions()


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
