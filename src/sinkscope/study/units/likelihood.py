"""What masking costs without writing an answer: how likely held-out text, or the true answer to a problem, is.

Text is read token by token. The first tokens are read at once and left alone; from then on each token is one forward, as
when the model writes. Only the tokens are given instead of chosen.

Of an answer, an autoregressive model reads the prompt untouched, then the whole answer in one forward. A diffusion model is
shown a canvas on which a share of the answer is masked, twice: once for the map that sinks are ranked by, once to be scored.
So both are changed after one clean look at the prompt, and both are asked for the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor

from sinkscope.attention.observe import observe
from sinkscope.conditions import NONE, Condition
from sinkscope.decoding.cost import Workload
from sinkscope.decoding.likelihood import Maskings, bound_parts, read_spans, score_part
from sinkscope.errors import StudyError
from sinkscope.files import MB, read_text
from sinkscope.models.family import FAMILIES
from sinkscope.models.model import Model
from sinkscope.results.accuracy import removed_shares, sum_effects
from sinkscope.results.rows import FirstKey, LikelihoodChange
from sinkscope.statistics import bootstrap, signed_rank
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import Job, Load, ModelInfo, Prompt, Rows, Unit, UnitKind, suits
from sinkscope.study.units.worker import EffectAfterPrefill, apply_condition, encode_prompt, model_for

TEXTS = Path(__file__).parent / "texts.yaml"
TURNS = ("<|im_end|>", "<|eot_id|>")  # what a chat model writes behind its answer
TYPICAL_ANSWER = 24  # tokens of a true answer to a small problem, for a plan


class LikelihoodKind(UnitKind):
    """Every condition of `likelihood`, all texts at once."""

    name = "likelihood"
    order = 40
    unchanged = "value"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        plan = study.likelihood
        measured = info.asked in plan.models or (plan.answering and info.asked in study.models)
        conditions = plan.conditions if measured else ()
        return [Unit("likelihood", info.asked, one, shown=info.name, last=plan.texts) for one in conditions]

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        texts, read, scored = study.likelihood.texts, study.likelihood.read, study.likelihood.scored
        if not info.causal:
            return masked_workload(study, info)
        found = [Workload(1, texts, read, read, 1), Workload(scored, texts, 1, read + scored // 2, 1)]
        if unit.condition == NONE:  # once more, to see what the first key receives
            found.append(Workload(1, texts, *[read + scored + 1] * 3))
        return found

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """Mean log-likelihood a token (nats) of each text; without intervention also what key 0 receives, layer by layer."""
        model = model_for(study, job.unit)
        plan = study.likelihood
        ids = windows(model, plan.texts, plan.read + plan.scored + 1, plan.file).to(model.device)
        if not model.causal:
            return read_masked(study, job, model, ids[:, :-1])
        with apply_condition(study, job.unit, model, range(plan.texts)) as taken:
            reading = read_spans(model, ids, range(plan.read, plan.read + plan.scored + 1))
            next(reading)
            taken.begin()
            values = [
                scores[:, -1].gather(-1, ids[:, place, None])[:, 0].cpu()
                for place, scores in enumerate(reading, plan.read + 1)
            ]
            effect = taken.effect()
        means: list[float] = torch.stack(values, 1).double().mean(1).tolist()
        rows = [{"problem": number, "value": value} for number, value in enumerate(means)]
        found: dict[str, Any] = {"rows": rows, "effect": effect, "tokens": plan.scored}
        if taken.active is None:
            found["first_key"] = first_key_shares(model, ids)
        return found

    def rows(self, study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load) -> Rows:
        plain = [unit for unit in units if unit.condition == NONE]
        return {
            "likelihood": likelihood_rows(study, models, units, load, "texts"),
            "first_key": [FirstKey(unit.shown, load(unit)["first_key"]) for unit in plain],
        }


@torch.inference_mode()
def read_masked(study: Study, job: Job, model: Model, ids: Tensor) -> dict[str, Any]:
    """A diffusion model's own bound, nats a token of each text [text, position].

    Every canvas is run twice: once for the map that sinks are ranked by, once to be scored.
    """
    plan, rows, effects = study.likelihood, list[dict[str, Any]](), list[dict[str, float]]()
    for number, text in enumerate(ids.tolist()):
        value = 0.0
        for part in bound_parts(model, plan.read, plan.scored, plan.samples, study.seed + number):
            with apply_condition(study, job.unit, model, [number], part.count) as taken:
                value += part.mean(score_part(model, text[: plan.read], text[plan.read :], part, True, taken.begin))
                effects.append(taken.effect())
        rows.append({"problem": number, "value": value / plan.scored})
    found = {"rows": rows, "effect": sum_effects(effects) if any(effects) else {}, "tokens": plan.scored}
    return found | ({} if any(effects) else {"first_key": first_key_shares(model, ids)})


def masked_workload(study: Study, info: ModelInfo) -> list[Workload]:
    """Every canvas twice, up to the end of its block where blocks are read in turn."""
    plan, samples = study.likelihood, study.likelihood.samples
    whole, family = plan.read + plan.scored, FAMILIES.get(info.family)
    if family is None or family.bound != "blocks":
        return [Workload(2 * plan.texts, samples, whole, whole, plan.scored // 2)]
    block = next(iter(info.settings.values()))["block"]
    blocks, ends = ceil(plan.scored / block), plan.read + plan.scored // 2
    return [Workload(2 * plan.texts * blocks, min(samples, 2**block - 1), ends, ends, block // 2)]


@cache
def held_out(file: str | None = None) -> list[str]:
    """Passages of a text file, with empty lines between; else some that no model was trained on."""
    if file is not None:
        return [one for one in read_text(Path(file), StudyError, MB).split("\n\n") if one.strip()]
    found: list[str] = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    return found


def windows(model: Model, count: int, size: int, file: str | None = None) -> Tensor:
    """[text, position]: the first `size` tokens of each of `count` passages, as plain text."""
    passages = held_out(file)
    if count > len(passages):
        raise StudyError(f"Expected likelihood.texts of at most {len(passages)}, got {count}; lower it.")
    rows = [model.encode(passage.strip(), chat=False)[0] for passage in passages[:count]]
    shortest = min(len(row) for row in rows)
    if shortest < size:
        asked = "likelihood.read + likelihood.scored"
        raise StudyError(f"Expected {asked} below {shortest} for {model.name}, got {size - 1}; lower one of them.")
    return torch.stack([row[:size] for row in rows])


@torch.inference_mode()
def first_key_shares(model: Model, ids: Tensor) -> list[float]:
    """Share of attention on key 0, a layer, over all queries but the first (which has no other key to look at)."""
    with observe(model) as seen:
        model.logits(ids)
    queries = ids.shape[1]
    return [float(((received.sum(2)[..., 0] - 1) / (queries - 1)).double().mean()) for received in seen.received]


class ForcedKind(UnitKind):
    """Every condition of `forced`, every task, all its problems."""

    name = "forced"
    order = 45
    unchanged = "value"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        if info.asked not in study.forced.models:
            return []
        return [
            Unit(
                "forced", info.asked, condition, task=task.name, last=task.limit(study.forced.problems), shown=info.name
            )
            for condition in study.forced.conditions
            if suits(condition.models, info)
            for task in study.tasks
        ]

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        problems, answer = unit.last - unit.first, TYPICAL_ANSWER
        whole = prompt + answer
        if info.causal:  # the prompt, then the answer
            return [Workload(problems, 1, prompt, prompt, 1), Workload(problems, 1, answer, whole, answer)]
        return [Workload(2 * problems, len(study.forced.levels), whole, whole, answer // 2)]

    def count_problems(self, study: Study, task: TaskPlan) -> int:
        return study.forced.problems

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """Mean log-likelihood per token (nats) of the answer to each problem, and what was taken from the model meanwhile."""
        model = model_for(study, job.unit)
        rows: list[dict[str, Any]] = []
        effects: list[dict[str, float]] = []
        copies = 1 if model.causal else len(study.forced.levels)
        for prompt in job.prompts:
            with apply_condition(study, job.unit, model, [prompt.number], copies) as after:
                value, tokens = _chain(model, prompt, after) if model.causal else _masked(study, model, prompt, after)
            rows.append({"problem": prompt.number, "value": value, "scored": tokens})
            effects.append(after.effect())
        return {"rows": rows, "effect": sum_effects(effects) if any(effects) else {}}

    def rows(self, study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load) -> Rows:
        return {"likelihood": likelihood_rows(study, models, units, load, "answers")}


def likelihood_rows(
    study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load, of: Literal["texts", "answers"]
) -> list[LikelihoodChange]:
    """Mean log-likelihood per token (nats) under each condition, and its change, paired text by text."""
    groups: dict[tuple[str, Condition], list[dict[str, Any]]] = {}
    for unit in units:
        groups.setdefault((unit.shown, unit.condition), []).append(load(unit))
    rows = []
    for (model, condition), results in groups.items():
        bases = groups[model, NONE]
        before, after = ([row["value"] for one in every for row in one["rows"]] for every in (bases, results))
        change = [b - a for a, b in zip(before, after, strict=True)]
        difference_low, difference_high = bootstrap(change, study.draws, study.seed)
        low, high = bootstrap(after, study.draws, study.seed)
        # As many tokens of every text, or as many as each answer has.
        tokens = sum(row.get("scored") or result["tokens"] for result in results for row in result["rows"])
        rows.append(
            LikelihoodChange(
                model=model, condition=condition.to_dict(), label=condition.label, n=len(after), unit="nats per token",
                tokens=tokens, value=sum(after) / len(after), low=low, high=high,
                difference=sum(change) / len(change), difference_low=difference_low, difference_high=difference_high,
                p=signed_rank(change), of=of, causal=models[model].causal,
                **removed_shares(result["effect"] for result in results),
            )
        )  # fmt: skip
    return rows


def _ids(model: Model, prompt: Prompt) -> tuple[list[int], list[int]]:
    """The prompt, and the answer with its end."""
    tokenizer = model.require_tokenizer()
    answer: list[int] = tokenizer(prompt.answer, add_special_tokens=False)["input_ids"]
    turns = [tokenizer.convert_tokens_to_ids(token) for token in TURNS if token in tokenizer.get_vocab()]
    ends = [end for end in (*turns, model.eos_id) if isinstance(end, int)]
    return encode_prompt(model, prompt)[0].tolist(), answer + ends[:1]


@torch.inference_mode()
def _chain(model: Model, asked: Prompt, after: EffectAfterPrefill) -> tuple[float, int]:
    """The chain rule; the last token of the prompt is read with the answer, since it predicts the answer's first."""
    prompt, answer = _ids(model, asked)
    ids = torch.tensor([prompt + answer], device=model.device)
    reading = read_spans(model, ids, (len(prompt) - 1, ids.shape[1] - 1))
    next(reading)
    after.begin()
    found = next(reading)[0].gather(-1, ids[0, len(prompt) :, None])
    return float(found.double().mean()), len(answer)


def _masked(study: Study, model: Model, asked: Prompt, after: EffectAfterPrefill) -> tuple[float, int]:
    """Mean over the levels of the mean over the masked tokens; which are masked is drawn once per problem."""
    prompt, answer = _ids(model, asked)
    source = torch.Generator().manual_seed(study.seed * 1_000_003 + asked.number)
    patterns = torch.zeros(len(study.forced.levels), len(answer), dtype=torch.bool)
    for row, level in zip(patterns, study.forced.levels, strict=True):
        row[torch.randperm(len(answer), generator=source)[: max(round(level * len(answer)), 1)]] = True
    scores = score_part(model, prompt, answer, Maskings(patterns), settle=True, settled=after.begin)
    return sum(scores) / len(scores) / len(answer), int(patterns.sum())
