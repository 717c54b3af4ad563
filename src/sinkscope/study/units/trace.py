"""A traced unit: generate with a recorder, keep what tables and verdicts need of each generation, save a few whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from sinkscope.attention.forward import seeded
from sinkscope.decoding.cost import Workload, forwards_of
from sinkscope.decoding.settings import Decode
from sinkscope.sinks import rule_from_dict
from sinkscope.sinks.kinds import ROLE_KIND, role_names
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import (
    Grade,
    Job,
    Load,
    ModelInfo,
    Prompt,
    Rows,
    Unit,
    UnitKind,
    conditions_for,
    decoded_units,
    trace_rows,
)  # fmt: skip
from sinkscope.study.units.trace_rows import HEADS
from sinkscope.study.units.worker import encode_prompt, model_for, row_seeds
from sinkscope.tracing import trace
from sinkscope.tracing.heads import head_dynamics, notable
from sinkscope.tracing.recorder import Keep
from sinkscope.tracing.sinks import find, sink_counts, sweep

if TYPE_CHECKING:
    from sinkscope.sinks import Rule
    from sinkscope.tracing import Trace

TRACED = 10  # problems per unit
LEAST_TEXT = 4  # tokens of a user's text; shorter runs between the tokens of a template belong to it
START = 4  # positions that count as the start; a chat template or StreamingLLM's four sinks fit there


class TraceKind(UnitKind):
    """Some problems of every task once more, with a recorder."""

    name = "trace"
    order = 30
    holds = "generations"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        takes = (lambda one: one.name == "none") if not info.answers else study.trace.takes
        conditions = filter(takes, conditions_for(study, info))
        units = decoded_units("trace", study, info, list(conditions), TRACED, study.trace.problems)
        return [replace(unit, decode=traced_settings(study, unit.decode)) for unit in units]

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        twice = kept_traces(study, unit) if _with_maps(study, unit) else 0
        one = forwards_of(_settings(unit), 1, prompt)
        return [replace(part, forwards=part.forwards * (unit.last - unit.first + twice)) for part in one]

    def count_problems(self, study: Study, task: TaskPlan) -> int:
        return study.trace.problems

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """Trace the unit's problems, one at a time: a trace of its own is exact, and needs no padding."""
        unit = job.unit
        model = model_for(study, unit)
        intervention = unit.condition.seeded(study.seed)
        interventions = [] if intervention is None else [intervention]
        settings, kept = _settings(unit), kept_traces(study, unit)
        generations: list[dict[str, Any]] = []
        vocabulary: dict[str, list[str]] = {}
        saved: list[str] = []

        def record(prompt: Prompt, keep: Keep) -> Trace:
            with seeded(row_seeds(study, unit, [prompt.number])):
                asked = encode_prompt(model, prompt) if prompt.ids else prompt.text
                made = trace(model, asked, settings, interventions=interventions, keep=keep)
            assert not isinstance(made, list)
            return made

        for place, prompt in enumerate(job.prompts):
            keep = Keep(value_norms=study.trace.norms, lens=study.trace.lens and place < kept)
            made = record(prompt, keep)
            generations.append({"problem": prompt.number, "text": made.text, **measures(made, study)})
            there = set(made.canvas.unique().tolist())  # the lens names tokens that never stood on the canvas
            vocabulary |= {str(token): list(entry) for token, entry in made.vocabulary.items() if token in there}
            for entry in generations[-1]["tokens"]:
                token, _, kind = entry.partition(" ")
                if kind:
                    vocabulary[entry] = [vocabulary[token][0], kind]
            if place < kept:
                if _with_maps(study, unit):  # once more
                    made = record(prompt, replace(keep, maps=notable(head_dynamics(made), study.trace.maps)))
                saved.append(f"{unit.id}__{prompt.number:04d}.safetensors")
                replace(made, model={**made.model, "name": unit.shown}).save(folder / "traces" / saved[-1])
        return {"generations": generations, "vocabulary": vocabulary, "saved": saved}

    def grade(self, found: dict[str, Any], right: Grade) -> dict[str, Any]:
        generations = []
        for row in found["generations"]:
            own = {name: value for name, value in row.items() if name not in ("problem", "text")}
            generations.append({"problem": row["problem"], "correct": right(row["problem"], row["text"]), **own})
        return {**found, "generations": generations}

    def rows(self, study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load) -> Rows:
        traced = trace_rows.gather(units, load)
        return {
            "tokens": trace_rows.token_shares(study, traced),
            "kinds": trace_rows.kind_shares(study, traced),
            "dynamics": trace_rows.dynamics(study, traced),
            "curves": trace_rows.curves(study, traced),
        }


def kept_traces(study: Study, unit: Unit) -> int:
    """How many of the unit's traces are saved whole: the first ones."""
    return max(min(study.trace.keep, unit.last) - unit.first, 0)


def _with_maps(study: Study, unit: Unit) -> bool:
    """Whether saved traces hold attention maps; which heads are worth it is known only when they are traced."""
    return bool(study.trace.maps) and unit.model in study.models


def traced_settings(study: Study, decode: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a unit with those that the study gives to traces alone, as far as the decoder has them."""
    return {**decode, **{name: value for name, value in study.trace.decode.items() if name in decode}}


def _settings(unit: Unit) -> Decode:
    """Without an exact cache, where nothing is changed: the same tokens.

    Over its cache every step has other queries, so that a sink which only they look at seems to flash. Without it a step
    is a whole map, as in every other diffusion model.
    """
    plain = unit.decoder.cache == "exact" and unit.condition.intervention is None
    plain = plain and None in unit.decoder.caches
    return replace(unit.decoder, cache=None) if plain else unit.decoder


def measures(made: Trace, study: Study) -> dict[str, Any]:
    """Everything that the findings use of one generation, as plain data."""
    rules = [rule_from_dict(rule) for rule in study.rules]
    rule = rules[0]
    found: dict[str, Any] = {
        "steps": made.steps,
        "positions": made.positions,
        "prompt": made.prompt_length,
        "tokens": {
            _entry(made, token, kind): list(counts)
            for (token, kind), counts in sink_counts(made, rule).items()
            if counts[1] > 0
        },  # how often each was a sink, and how often it was there
        "heads": _heads(made, rule),
        "places": _places(made, rule),
        "first_key": first_key(made),
        "rules": [int(find(made, one).height) for one in rules],
        "keys": int(made.alive().sum()) * made.layers * made.heads_count,
    }
    if made.causal:
        found["columns"] = _heads(made.cumulative(), rule)
    found["header"] = chat_header(made)
    steps = made.part_steps("answer")
    if steps.start != steps.stop:  # a text that ends before it begins has no answer
        answer = made.part("answer")
        found["answer"] = [_answer_view(answer, one, whole=one is rule) for one in rules]
    if study.trace.epsilons:
        curve = sweep(made, study.trace.epsilons, ("sum", "percent", "uniform"))
        found["curve"] = curve.select("unit", "epsilon", "sinks", "keys").rows()
    return found


def _answer_view(answer: Trace, rule: Rule, whole: bool) -> dict[str, Any]:
    """What the sinks of one definition do while the answer is written; whole: with the means of every head."""
    columns = {"columns": _heads(answer.cumulative(), rule, whole)} if answer.causal else {}
    return {"heads": _heads(answer, rule, whole), "places": _places(answer, rule), **columns}


def chat_header(made: Trace) -> str:
    """The ids before the user's text, joined; empty where the prompt has no template."""
    ids = made.canvas[0, : made.prompt_length]
    kinds = [made.vocabulary.get(token, ("", ""))[1] for token in ids.tolist()]
    roles = role_names(made.canvas[:1].numpy(), made.vocabulary)[0]
    of_template = [kind == ROLE_KIND or bool(role) for kind, role in zip(kinds, roles, strict=False)]
    if not any(of_template):
        return ""
    runs = [
        (is_template, [place for place, _ in run])
        for is_template, run in groupby(enumerate(of_template), itemgetter(1))
    ]
    texts = [places for is_template, places in runs if not is_template and len(places) >= LEAST_TEXT]
    begin = texts[-1][0] if texts else len(of_template)
    return " ".join(map(str, ids[:begin].tolist()))


def _entry(made: Trace, token: int, kind: str) -> str:
    """A token's id; with its kind behind it where that is not the vocabulary's: the name of a role in a template."""
    return str(token) if kind == made.vocabulary.get(token, ("", "unknown"))[1] else f"{token} {kind}"


def _heads(made: Trace, rule: Rule, whole: bool = True) -> list[dict[str, Any]]:
    means = HEADS if whole else ()
    table = head_dynamics(made, rule).select("layer", "head", "class", "direction", "relocating", *means)
    return table.with_columns(pl.col(pl.Float32).cast(pl.Float64)).to_dicts()


def _places(made: Trace, rule: Rule) -> dict[str, float]:
    """Where the sinks stand: how many, and how many of them at the first key, at the start, on masks, in the block."""
    sinks = find(made, rule)
    step, position = (torch.from_numpy(sinks[name].to_numpy().copy()).long() for name in ("step", "position"))
    begin, end = made.blocks.long()[step].unbind(1)
    found = {
        "sinks": step >= 0,
        "first": position == 0,
        "start": position < START,
        "prompt": position < made.prompt_length,
        "masked": made.canvas[step, position] == made.mask_id if made.mask_id is not None else step < 0,
        "block": (position >= begin) & (position < end),
    }
    return {name: float(there.sum()) for name, there in found.items()}


def first_key(made: Trace) -> list[float]:
    """Share of the attention that key 0 gets, a layer; the mean over steps and heads."""
    shares: list[float] = made.scores("all", "mean")[..., 0].double().mean((0, 2)).tolist()
    return shares
