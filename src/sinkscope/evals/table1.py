"""`table1`: the paper's Table 1 on real checkpoints, with both rankings, random controls, intervals, paired tests."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope import io
from sinkscope.errors import TaskError
from sinkscope.evals import shift
from sinkscope.evals.batches import Batch, Kind, Request, Runner
from sinkscope.evals.evaluation import Asked, Choices, OnMessage, OnProgress, Part, check_numbers, loader, outlined
from sinkscope.evals.masking import decode_words, grid, label
from sinkscope.evals.protocol import OTHERWISE, benchmark_of, draws, protocol_for
from sinkscope.evals.store import settled
from sinkscope.interventions.conditions import Condition
from sinkscope.paper import TABLE_1
from sinkscope.settings.decode import Decode
from sinkscope.statistics import confidence_sequence, decided, paired

if TYPE_CHECKING:
    from sinkscope.models.base import Model

logger = logging.getLogger(__name__)

OTHER_SEED = "no-op with another seed"
FAST = {"commit": "threshold", "threshold": 0.9, "confidence": "probability", "steps": None, "cache": None}
AGREE = 0.05  # fast and slow decoding agree if their accuracies differ by less, with 95 % confidence


@dataclass(frozen=True)
class Stopping:
    """Rounds of problems; a comparison ends when its confidence sequence is inside or outside ± margin points."""

    margin: float = 5.0
    round: int = 50

    def __post_init__(self) -> None:
        check_numbers(round=self.round)
        if not 0 < self.margin <= 50:
            raise TaskError(f"Expected a margin above 0 and up to 50 points, got {self.margin}.")


def table1(
    models: Sequence[str | Model],
    out: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    conditions: Sequence[Condition] = (),
    limit: int | None = None,
    fast: int | None = None,
    sequential: Stopping | None = None,
    traced: int = 3,
    dtype: str | None = None,
    device: str | None = None,
    engine: Any = None,
    part: Part | None = None,
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Run models × tasks × {none, k sinks by clean and as_run ranking, k random keys}; returns what results.json holds.

    tasks: by default the benchmarks of the protocol; under `harness` gsm8k, and humaneval_instruct where a chat template
    is used, humaneval where none is. conditions: further ones, behind the grid. fast: commit all that is surer than 0.9,
    if that agrees with the protocol's decoding on so many unmasked problems. sequential: stop a comparison early.
    Every request is kept as soon as it is answered: a killed run is resumed. `traced` problems per task are run
    once more with a recorder, for sink tokens, dynamics of the heads and the order of decoding. They also run under every
    condition along the unmasked path, for the divergence of the logits. part: (i, n), answer every n-th batch alone, and
    score nothing. The other words are `evaluate`'s; more: the fields of `Choices`.
    """
    if part is not None and (fast or sequential):
        raise TaskError("Parts of a table cannot look at each other's answers: leave --fast and --sequential out.")
    check_numbers(limit=limit, fast=fast)
    message = on_message or logger.info

    def asked_of(model: Model) -> tuple[Asked, list[Arm]]:
        names = tasks or _default_tasks(model, more.get("protocol"), more.get("chat"))
        asked = Choices(tuple(names), **more).build(model)
        return asked, arms_of(asked, [*grid(model.causal, ks), *conditions])

    unique = {str(getattr(model, "name", model)): model for model in models}.values()
    # Whatever is missing is told before the first model is loaded.
    plans = [asked_of(outlined(given, engine)) for given in unique]
    counts = [asked.count(limit, part) * len(arms) for asked, arms in plans]
    total, before = sum(counts), 0
    results: dict[str, Any] = {"schema": 1, "cells": [], "tokens": [], "dynamics": [], "order": [], "verdicts": []}
    runs: list[dict[str, Any]] = []
    with loader(engine, dtype, device, message) as load:
        for given, (planned, arms), count in zip(unique, plans, counts, strict=True):
            model, runner = load(given)
            asked = replace(planned, model=model)
            asked.tell(message)

            def tick(done: int, before: int = before) -> None:
                if on_progress is not None:
                    on_progress(before + done, max(total, before + done))

            safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in model.name)
            folder = Path(out) / (safe.strip("._") or "model")
            if fast is not None and not model.causal:
                asked = faster(asked, folder, runner, fast, message)
            table = ModelTable(asked, folder, runner, part, limit, sequential, message, tick)
            done = table.run(arms)
            before += count
            if part is not None:
                continue
            if traced:
                message(f"{model.name}: tracing {traced} problems per task")
                for kind, rows in table.look_inside(done, traced).items():
                    results[kind] += rows
            shift.minus_random([one.cell for one in done])
            results["cells"] += [one.cell for one in done]
            once = {id(one.info): one for one in done}.values()  # the tasks of a condition are one run
            runs += [{"condition": one.cell["condition"], **settled(one.info)} for one in once]
    if part is not None:
        return {}
    results["run"] = {
        "runs": runs,
        "machine": _machine(more.get("batch_size", Choices.batch_size), runs, device),
        "sequential": sequential and asdict(sequential),
    }
    io.write(Path(out) / "table1.md", as_markdown(results))
    io.write(Path(out) / "results.json", json.dumps(results, indent=1, default=str, ensure_ascii=False))
    return results


def _default_tasks(model: Model, protocol: Any, chat: bool | None) -> Sequence[str]:
    chosen = protocol_for(model.name, protocol)
    if chosen.name != OTHERWISE:
        return sorted({setup.benchmark for setup in chosen.setups})
    chatty = model.chat_template is not None if chat is None else chat
    return "gsm8k", "humaneval_instruct" if chatty else "humaneval"


def faster(asked: Asked, folder: Path, runner: Runner, count: int, message: OnMessage) -> Asked:
    """The same, decoded fast, after that agreed with the protocol's decoding on so many unmasked problems."""
    given, name = asked.choices.settings, asked.model.name
    if isinstance(given, Decode):
        raise TaskError("Expected decode settings as words for fast decoding, got a Decode; leave fast out.")
    message(f"{name}: fast decoding against the protocol's on {count} problems")
    slow, _ = asked.run(None, folder / "none-as-protocol", runner=runner, limit=count)
    quick, _ = asked.run(None, folder / "none", runner=runner, limit=count, words=FAST)
    for task, entry in slow["tasks"].items():
        both = (one["tasks"][task]["scores"][entry["metric"]]["right"] for one in (slow, quick))
        pair = paired(*both)
        if not -AGREE < pair.difference_low <= pair.difference_high < AGREE:
            low, middle, high = (100 * one for one in (pair.difference_low, pair.difference, pair.difference_high))
            raise TaskError(
                f"Fast decoding does not agree with the protocol's on {entry['n']} problems of {task}: accuracy differs by "
                f"{middle:+.1f} points ({low:+.1f} to {high:+.1f}), and less than {100 * AGREE:g} are wanted; leave --fast "
                "out, or check more problems."
            )
    message(f"{name}: fast decoding agrees, all conditions are decoded with threshold 0.9")
    return replace(asked, choices=replace(asked.choices, settings={**(given or {}), **FAST}))


@dataclass(frozen=True)
class Arm:
    """A condition under its name in the table; words: decode settings over the table's."""

    name: str
    condition: Condition
    words: Mapping[str, Any]


def arms_of(asked: Asked, conditions: Sequence[Condition]) -> list[Arm]:
    arms = [Arm(label(one), one, decode_words(one)) for one in conditions]
    if any(draws(asked.settings(name)) for name in asked.tasks):
        # The noise of sampling, which no paired interval over one seed contains.
        given = asked.choices.settings
        seed = given.seed if isinstance(given, Decode) else (given or {}).get("seed", 0)
        arms.insert(1, Arm(OTHER_SEED, Condition("noop"), {"seed": seed + 1}))
    return arms


@dataclass(frozen=True)
class Done:
    """A condition on one task: its cell, the answers that it is made of, and what the run says about itself."""

    cell: dict[str, Any]
    condition: Condition
    records: list[dict[str, Any]]
    prompts: list[tuple[int, ...]]
    right: list[bool] | None  # one verdict per problem, where scores are verdicts
    info: dict[str, Any]


@dataclass(frozen=True)
class ModelTable:
    """All conditions of one model: answered, compared with the unmasked run, stopped early where that is wanted."""

    asked: Asked
    out: Path
    runner: Runner
    part: Part | None
    limit: int | None
    stopping: Stopping | None
    message: OnMessage
    on_answers: Callable[[int], object]  # of this model, there by now

    @property
    def model(self) -> Model:
        return self.asked.model

    def run(self, arms: Sequence[Arm]) -> list[Done]:
        """Every condition on every task; of a part of the requests nothing is scored."""
        found: list[Done] = []
        for index, arm in enumerate(arms):
            self.message(f"{self.model.name}: condition {index + 1} of {len(arms)}, {arm.name}")
            found += self._compared(arm, index, [one for one in found if one.cell["label"] == "none"])
        if self.stopping is None:
            return found
        # The unmasked run grew with whatever was compared with it.
        whole = self._cells(arms[0], max(one.cell["n"] for one in found))
        return [*whole, *(one for one in found if one.cell["label"] != "none")]

    def _compared(self, arm: Arm, index: int, plain: Sequence[Done]) -> list[Done]:
        if self.stopping is None:
            return self._cells(arm, self.limit, plain, index)
        # Numbers of problems after which a comparison is looked at.
        whole = max(len(task.eval_docs) for task in self.asked.tasks.values())
        whole = min(self.limit or whole, whole)
        for size in [*range(self.stopping.round, whole, self.stopping.round), whole]:
            base = self._cells(Arm("none", Condition("none"), {}), size) if plain else []
            done = self._cells(arm, size, base, index)
            if not plain or all(one.cell["sequential"]["decision"] != "open" for one in done):
                break
        return done

    def _cells(self, arm: Arm, limit: int | None, plain: Sequence[Done] = (), index: int | None = None) -> list[Done]:
        """A cell per task, compared with the unmasked ones; index: the arm's, None where its answers were counted before."""
        own = self.out / f"{arm.condition.key}{'-other-seed' if arm.name == OTHER_SEED else ''}"
        each = self.asked.count(self.limit, self.part)
        summary, lm = self.asked.run(
            arm.condition, own, runner=self.runner, part=self.part, limit=limit, order=self._order(), words=arm.words,
            on_progress=lambda done, _: None if index is None else self.on_answers(each * index + done),
        )  # fmt: skip
        before = {one.cell["task"]: one for one in plain}
        found: list[Done] = []
        for task, entry in summary.get("tasks", {}).items():
            score = entry["scores"][entry["metric"]]
            cell: dict[str, Any] = {
                "model": self.model.name, "task": task, "condition": arm.condition.to_dict(), "label": arm.name,
                "metric": entry["metric"], "n": entry["n"], "correct": score.get("correct"), "accuracy": score["value"],
                "low": score.get("low"), "high": score.get("high"), "effect": summary["sinkscope"]["effect"],
                "protocol": entry.get("protocol"), "published": entry.get("published", []) if arm.name == "none" else [],
                "paper": self._paper(task, arm), "folder": f"{own.parent.name}/{own.name}",
            }  # fmt: skip
            records, prompts = lm.answered(task)
            done = Done(cell, arm.condition, records, prompts, score.get("right"), summary["sinkscope"])
            found.append(done)
            base = before.get(task, done)
            if done.right is None or base.right is None:
                continue
            cell |= vars(paired(base.right, done.right))
            both = [*records, *base.records]
            if len(records) == len(base.records) == entry["n"] and all("ids" in one for one in both):
                cell["shift"] = shift.shift(base.records, records, list(zip(base.right, done.right, strict=True)))
            if self.stopping is not None and base is not done:
                cell["sequential"] = self._sequential(task, base.right, done.right)
        return found

    def _order(self) -> list[int] | None:
        """A sequence of problems that is looked at as it grows must be drawn at random."""
        if self.stopping is None:
            return None
        largest = max(len(task.eval_docs) for task in self.asked.tasks.values())
        return random.Random(self.asked.choices.seed).sample(range(largest), largest)

    def _sequential(self, task: str, was: Sequence[bool], right: Sequence[bool]) -> dict[str, Any]:
        assert self.stopping is not None
        drawn = self.asked.drawn(task, self._order() or [], len(right))
        place = {number: index for index, number in enumerate(sorted(drawn))}  # verdicts are by number
        change = np.subtract(right, was, dtype=np.float64)[[place[number] for number in drawn]]
        inside, outside = (bool(one[-1]) for one in decided(change, self.stopping.margin / 100))
        low, high = confidence_sequence(change.tolist())
        decision = "inside" if inside else "outside" if outside else "open"
        return {"margin": self.stopping.margin, "decision": decision, "low": low, "high": high}

    def _paper(self, task: str, arm: Arm) -> float | None:
        """The paper's figure, for exactly its checkpoint and the protocol that repeats it."""
        exact = self.asked.protocol.name == "paper" and self.asked.published(task)
        if not exact or (arm.name != "none" and arm.condition.name != "mask_sinks"):
            return None
        return TABLE_1.get((self.model.family, benchmark_of(task) or ""), {}).get(arm.condition.k)

    # ---- a few problems once more, with a recorder

    def look_inside(self, done: Sequence[Done], count: int) -> dict[str, list[dict[str, Any]]]:
        """Sink tokens, dynamics of heads and order of decoding of a few problems; their divergence into the cells."""
        found: dict[str, list[dict[str, Any]]] = {"tokens": [], "dynamics": [], "order": []}
        plain = {one.cell["task"]: one.prompts[:count] for one in done if one.cell["label"] == "none" and one.prompts}
        for task, (record,) in self._looked("trace", None, plain):
            own = {"model": self.model.name, "task": task}
            found["tokens"] += [{**own, **row} for row in record["shares"]]
            found["dynamics"] += [{**own, **row} for row in record["heads"]]
            found["order"] += [{**own, "problem": number, **row} for number, row in enumerate(record["order"])]
        masked = {one.condition.key: one.condition for one in done if one.condition.name != "none"}
        for number, condition in enumerate(masked.values(), 1):
            self.message(f"{self.model.name}: divergence {number} of {len(masked)}, {condition.label}")
            for task, records in self._looked("divergence", condition, plain):
                cell = next(one.cell for one in done if one.condition == condition and one.cell["task"] == task)
                for name in ("kl", "flipped") if "shift" in cell else ():
                    cell["shift"][name] = shift.mean([record[name] for record in records])
        return found

    def _looked(
        self, kind: Kind, condition: Condition | None, prompts: Mapping[str, Sequence[tuple[int, ...]]]
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """In the order of the tasks, wherever they were run."""
        seed = self.asked.choices.seed
        batches = {
            task: Batch(kind, tuple(Request(task, ids) for ids in own), self.asked.settings(task), seed=seed)
            for task, own in prompts.items()
        }
        outcomes = {batch.id: outcome for batch, outcome in self.runner(condition, list(batches.values()))}
        for task, batch in batches.items():
            yield task, outcomes[batch.id]["answers"]


# ---- as text


def _machine(batch_size: int, runs: list[dict[str, Any]], device: str | None) -> dict[str, Any]:
    """What kernels, and so answers in bfloat16, depend on."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "batch_size": batch_size, "device": device or "cpu", "gpu": torch.cuda.get_device_name() if cuda else None,
        "dtype": sorted({run["model"]["dtype"] for run in runs}), "cuda": torch.version.cuda,
        **(runs[0]["versions"] if runs else {}),
    }  # fmt: skip


def as_markdown(results: dict[str, Any]) -> str:
    """Accuracies with their intervals and paired tests, the shift of the answers, and what all was run with."""
    rows = []
    for cell in results["cells"]:
        span = "" if cell["low"] is None else f"{cell['low']:.3f}–{cell['high']:.3f}"
        low, high = (100 * cell.get(f"difference_{end}", 0) for end in ("low", "high"))
        change = f"{100 * cell['difference']:+.1f} ({low:+.1f} … {high:+.1f})" if "difference" in cell else ""
        if "sequential" in cell:
            change += f", {cell['sequential']['decision']} ± {cell['sequential']['margin']:g}"
        rows.append([
            cell["model"], cell["task"], cell.get("protocol") or "", cell["label"], cell["n"],
            f"{cell['accuracy']:.3f}", span, change, f"{cell['p']:.3g}" if "p" in cell else "",
            "" if cell["paper"] is None else f"{cell['paper']:.2f}",
            ", ".join(f"{one['score']:g} ({one['by']})" for one in cell.get("published", [])),
        ])  # fmt: skip
    titles = "model | task | protocol | condition | n | accuracy | 95 % | difference | p | paper | published"
    parts = [shift.markdown_table(titles, rows)]
    if moved := shift.as_markdown(results["cells"]):
        parts.append(f"Answers against the unmasked run; in brackets less the same of random keys.\n\n{moved}")
    if machine := results.get("run", {}).get("machine"):
        shown = {**machine, "dtype": ", ".join(machine["dtype"])}
        parts.append(", ".join(f"{name} {'none' if value is None else value}" for name, value in shown.items()) + "\n")
    return "\n".join(parts)
