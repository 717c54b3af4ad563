"""All conditions of Table 1 on one model: answered, compared with the unmasked run, stopped early where that is wanted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import TaskError
from sinkscope.evals import shift
from sinkscope.evals.asked import Asked, OnMessage, Place, check_numbers
from sinkscope.evals.batches import Batch, Request, job_of, run_batch
from sinkscope.evals.masking import decode_words, label
from sinkscope.evals.protocol import benchmark_of, checkpoint_of, settings_for
from sinkscope.evals.scores import right_answers
from sinkscope.interventions.conditions import Condition
from sinkscope.paper import TABLE_1
from sinkscope.settings.decode import Decode
from sinkscope.statistics import confidence_sequence, decided, paired

if TYPE_CHECKING:
    from sinkscope.evals.harness import HarnessLM
    from sinkscope.models.base import Model

OnTick = Callable[[int, int], object]  # answers there, answers in all, over all models and conditions
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


@dataclass(frozen=True)
class Arm:
    """A condition under its name in the table."""

    name: str
    condition: Condition
    settings: Any = None  # of decoding, in place of the table's
    place: tuple[int, int] | None = None  # which of how many, for the progress; None: it was counted before


@dataclass(frozen=True)
class Done:
    """A condition on one task: its cell, the answers that it is made of, and what the run says about itself."""

    cell: dict[str, Any]
    condition: Condition
    records: list[dict[str, Any]]
    prompts: list[str]
    right: list[bool] | None  # one verdict per problem, where scores are verdicts
    info: dict[str, Any]
    first: bool  # of the condition's tasks


@dataclass(frozen=True)
class ModelTable:
    """All conditions of one model."""

    asked: Asked
    place: Place
    limit: int | None
    stopping: Stopping | None
    message: OnMessage
    on_progress: OnTick | None
    before: int  # answers of the models before this one
    later: int  # models after it, which are taken to have as many answers each
    fast: dict[str, Any] | None = None

    @property
    def model(self) -> Model:
        return self.asked.model

    def run(self, conditions: Sequence[Condition]) -> list[Done]:
        """Every condition on every task; of a part of the requests nothing is scored."""
        arms = [Arm(label(one), one) for one in conditions]
        asked = self.asked.choices.settings
        used = [settings_for(self.model, name, asked, None, self.asked.protocol) for name in self.asked.tasks]
        if any(one.temperature > 0 or one.confidence == "random" or one.commit == "origin" for one in used):
            # The noise of sampling, which no paired interval over one seed contains.
            seed = asked.seed if isinstance(asked, Decode) else (asked or {}).get("seed", 0)
            arms.insert(1, Arm(OTHER_SEED, Condition("noop"), self._with({"seed": seed + 1})))
        found: list[Done] = []
        for index, arm in enumerate(arms):
            self.message(f"{self.model.name}: condition {index + 1} of {len(arms)}, {arm.name}")
            plain = [one for one in found if one.cell["label"] == "none"]
            found += self._compared(replace(arm, place=(index, len(arms))), plain)
        if self.stopping is None:
            return found
        # The unmasked run grew with whatever was compared with it.
        whole = self._cells(Arm("none", Condition("none")), max(one.cell["n"] for one in found))
        return [*whole, *(one for one in found if one.cell["label"] != "none")]

    def _compared(self, arm: Arm, plain: Sequence[Done]) -> list[Done]:
        if self.stopping is None:
            return self._cells(arm, self.limit, plain)
        # Numbers of problems after which a comparison is looked at.
        whole = max(len(task.eval_docs) for task in self.asked.tasks.values())
        whole = min(self.limit or whole, whole)
        for size in [*range(self.stopping.round, whole, self.stopping.round), whole]:
            base = self._cells(Arm("none", Condition("none")), size) if plain else []
            done = self._cells(arm, size, base)
            if not plain or all(one.cell["sequential"]["decision"] != "open" for one in done):
                break
        return done

    def _answered(self, arm: Arm, limit: int | None) -> tuple[dict[str, Any], HarnessLM, str]:
        own = (self.place.out or Path()) / f"{arm.condition.key}{'-other-seed' if arm.settings is not None else ''}"
        each = -(-self.asked.count(self.limit) // (self.place.part or (1, 1))[1])

        def tick(done: int, total: int) -> None:
            if self.on_progress is not None and arm.place is not None:
                index, count = arm.place
                whole = self.before + each * count * (1 + self.later)
                self.on_progress(self.before + each * index + done, whole)

        words = decode_words(arm.condition)
        settings = self._with(words) if words else self.fast if arm.settings is None else arm.settings
        change = arm.condition.intervention(self.asked.choices.seed)
        place = replace(self.place, out=own)
        summary, lm = self.asked.run(
            change, place, limit=limit, order=self._order(), settings=settings, on_progress=tick
        )
        return summary, lm, f"{own.parent.name}/{own.name}"

    def _order(self) -> list[int] | None:
        """A sequence of problems that is looked at as it grows must be drawn at random."""
        if self.stopping is None:
            return None
        largest = max(len(task.eval_docs) for task in self.asked.tasks.values())
        return random.Random(self.asked.choices.seed).sample(range(largest), largest)

    # ---- decode settings

    def _with(self, words: Mapping[str, Any]) -> Decode | dict[str, Any]:
        asked = self.fast or self.asked.choices.settings
        return replace(asked, **words) if isinstance(asked, Decode) else {**(asked or {}), **words}

    def faster(self, count: int) -> ModelTable:
        """The table with fast decoding, after it agreed with the protocol's on so many unmasked problems."""
        asked = self.asked.choices.settings
        if isinstance(asked, Decode):
            raise TaskError("Expected decode settings as words for fast decoding, got a Decode; leave fast out.")
        words, found = {**(asked or {}), **FAST}, {}
        self.message(f"{self.model.name}: fast decoding against the protocol's on {count} problems")
        where = (self.place.out or Path()) / "none"
        slow, _ = self.asked.run(None, replace(self.place, out=where), limit=count)
        quick, _ = self.asked.run(
            None, replace(self.place, out=where.with_name("none-fast")), limit=count, settings=words
        )
        for task in slow["tasks"]:
            pair = paired(right_answers(slow, task), right_answers(quick, task))
            found[task] = {"n": slow["tasks"][task]["n"], **vars(pair)}
            if not -AGREE < pair.difference_low <= pair.difference_high < AGREE:
                raise TaskError(
                    f"Fast decoding does not agree with the protocol's on {found[task]['n']} problems of {task}: accuracy "
                    f"differs by {100 * pair.difference:+.1f} points ({100 * pair.difference_low:+.1f} to "
                    f"{100 * pair.difference_high:+.1f}), and less than {100 * AGREE:g} are wanted; leave --fast out, or "
                    "check more problems."
                )
        self.message(f"{self.model.name}: fast decoding agrees, all conditions are decoded with threshold 0.9")
        return replace(self, fast=words)

    # ---- results

    def _cells(self, arm: Arm, limit: int | None, plain: Sequence[Done] = ()) -> list[Done]:
        """A cell per task, compared with the unmasked ones."""
        summary, lm, folder = self._answered(arm, limit)
        before = {one.cell["task"]: one for one in plain}
        found: list[Done] = []
        for task, entry in summary.get("tasks", {}).items():
            score = entry["scores"][entry["metric"]]
            cell: dict[str, Any] = {
                "model": self.model.name, "task": task, "condition": arm.condition.to_dict(), "label": arm.name,
                "metric": entry["metric"], "n": entry["n"], "correct": score.get("correct"), "accuracy": score["value"],
                "low": score.get("low"), "high": score.get("high"), "effect": summary["sinkscope"]["effect"],
                "protocol": entry.get("protocol"), "published": entry.get("published", []) if arm.name == "none" else [],
                "paper": self._paper(task, arm), "folder": folder,
            }  # fmt: skip
            records, prompts = lm.answered(task)
            own = Done(cell, arm.condition, records, prompts, score.get("right"), summary["sinkscope"], not found)
            found.append(own)
            base = before.get(task, own)
            if own.right is None or base.right is None:
                continue
            cell |= vars(paired(base.right, own.right))
            if len(records) == len(base.records) == entry["n"] and all(
                "ids" in one for one in [*records, *base.records]
            ):
                cell["shift"] = shift.shift(base.records, records, list(zip(base.right, own.right, strict=True)))
            if self.stopping is not None and base is not own:
                cell["sequential"] = self._sequential(task, base.right, own.right)
        return found

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
        setup = self.asked.setups.get(task)
        exact = setup is not None and setup.of(checkpoint_of(self.model.name)) and self.asked.published(task)
        if self.asked.protocol.name != "paper" or not exact or self.fast is not None:
            return None
        if arm.name != "none" and arm.condition.name != "mask_sinks":
            return None
        return TABLE_1.get((self.model.family, benchmark_of(task) or ""), {}).get(arm.condition.k)

    def look_inside(self, done: Sequence[Done], count: int) -> dict[str, list[dict[str, Any]]]:
        """Sink tokens, dynamics of heads and order of decoding of a few problems; their divergence into the cells."""
        found: dict[str, list[dict[str, Any]]] = {"tokens": [], "dynamics": [], "order": []}
        plain = {one.cell["task"]: one for one in done if one.cell["label"] == "none" and one.prompts}
        batches = {task: self._batch("trace", task, one.prompts[:count]) for task, one in plain.items()}
        for task, (record,) in self._outcomes(None, batches):
            own = {"model": self.model.name, "task": task}
            found["tokens"] += [{**own, **row} for row in record["shares"]]
            found["dynamics"] += [{**own, **row} for row in record["heads"]]
            found["order"] += [{**own, "problem": number, **row} for number, row in enumerate(record["order"])]
        masked = {one.condition.key: one for one in done if one.condition.name != "none"}
        for number, condition in enumerate((one.condition for one in masked.values()), 1):
            self.message(f"{self.model.name}: divergence {number} of {len(masked)}, {condition.label}")
            batches = {task: self._batch("divergence", task, one.prompts[:count]) for task, one in plain.items()}
            for task, records in self._outcomes(condition, batches):
                cell = next(one.cell for one in done if one.condition == condition and one.cell["task"] == task)
                for name in ("kl", "flipped"):
                    known = [record[name] for record in records if record[name] is not None]
                    if "shift" in cell:
                        cell["shift"][name] = sum(known) / len(known) if known else None
        return found

    def _batch(self, kind: Any, task: str, prompts: list[str]) -> Batch:
        from sinkscope.evals.harness import HarnessLM

        asked = self.fast or self.asked.choices.settings
        settings = settings_for(self.model, task, asked, None, self.asked.protocol)
        lm = HarnessLM(self.model, settings=settings)
        room = self.model.context - settings.length
        return Batch(kind, tuple(Request(task, tuple(lm.tok_encode(prompt)[-room:])) for prompt in prompts), settings)

    def _outcomes(
        self, condition: Condition | None, batches: Mapping[str, Batch]
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """In the order of the tasks, wherever they were run."""
        change = None if condition is None else condition.intervention(self.asked.choices.seed)
        if self.place.run is None:
            outcomes = {batch.id: run_batch(self.model, change, batch) for batch in batches.values()}
        else:
            job = job_of(self.model, self.place.dtype, self.place.device, change)
            outcomes = {batch.id: outcome for batch, outcome in self.place.run(job, list(batches.values()))}
        for task, batch in batches.items():
            yield task, outcomes[batch.id]["answers"]
