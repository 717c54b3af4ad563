"""How likely the true answer to a problem is under a condition: what masking costs, without writing an answer.

An autoregressive model reads the prompt untouched, then the whole answer in one forward. A diffusion model is shown a canvas
on which a share of the answer is masked, twice: once for the map that sinks are ranked by, once to be scored. So both are
changed after one clean look at the prompt, and both are asked for the same tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sinkscope.evals.scoring import masked_scores, read_spans
from sinkscope.models.base import Model
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit, UnitKind, Workload, suits
from sinkscope.study.units.given import COUNTED, AfterFirst, asked, changed, model_for
from sinkscope.tasks import Problem

TURNS = ("<|im_end|>", "<|eot_id|>")  # what a chat model writes behind its answer
TYPICAL_ANSWER = 24  # tokens of a true answer to a small problem, for a plan


class ForcedKind(UnitKind):
    """Every condition of `forced`, every task, all its problems."""

    name = "forced"
    order = 45
    unchanged = "value"
    what = "the likelihood of the answer to a problem of {task},"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        if info.asked not in study.forced.models:
            return []
        return [
            Unit("forced", info.asked, condition, task=task.name, last=study.forced.problems, shown=info.name)
            for condition, models in study.forced.conditions
            if suits(models, info)
            for task in study.tasks
        ]

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        problems, answer = unit.last - unit.first, TYPICAL_ANSWER
        whole = prompt + answer
        if info.causal:  # the prompt, then the answer
            return [Workload(problems, 1, prompt, prompt, 1), Workload(problems, 1, answer, whole, answer)]
        return [Workload(2 * problems, len(study.forced.levels), whole, whole, answer // 2)]

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        """Mean log-likelihood per token (nats) of the answer to each problem, and what was taken from the model meanwhile."""
        model = model_for(study, unit)
        rows: list[dict[str, Any]] = []
        taken = dict.fromkeys((*COUNTED, "leak"), 0.0)
        for number, problem in asked(study, unit, study.forced.problems):
            with changed(study, unit, model, [number], 1 if model.causal else len(study.forced.levels)) as after:
                value, tokens = (
                    _chain(model, problem, after) if model.causal else _masked(study, model, problem, number, after)
                )
            rows.append({"problem": number, "value": value, "scored": tokens})
            if after.active is not None:
                now = vars(after.active.effect)
                leak = max(taken["leak"], now["leak"])
                taken = {**{name: taken[name] + now[name] - after.first[name] for name in COUNTED}, "leak": leak}
        return {"rows": rows, "effect": {} if after.active is None else taken}


def _ids(model: Model, problem: Problem) -> tuple[list[int], list[int]]:
    """The prompt, and the answer with its end."""
    tokenizer = model.require_tokenizer()
    answer: list[int] = tokenizer(problem.answer, add_special_tokens=False)["input_ids"]
    turns = [tokenizer.convert_tokens_to_ids(token) for token in TURNS if token in tokenizer.get_vocab()]
    ends = [end for end in (*turns, model.eos_id) if isinstance(end, int)]
    return model.encode(problem.prompt)[0].tolist(), answer + ends[:1]


@torch.inference_mode()
def _chain(model: Model, problem: Problem, after: AfterFirst) -> tuple[float, int]:
    """The chain rule; the last token of the prompt is read with the answer, since it predicts the answer's first."""
    prompt, answer = _ids(model, problem)
    ids = torch.tensor([prompt + answer], device=model.device)
    reading = read_spans(model, ids, (len(prompt) - 1, ids.shape[1] - 1))
    next(reading)
    after.begin()
    found = next(reading)[0].gather(-1, ids[0, len(prompt) :, None])
    return float(found.double().mean()), len(answer)


def _masked(study: Study, model: Model, problem: Problem, number: int, after: AfterFirst) -> tuple[float, int]:
    """Mean over the levels of the mean over the masked tokens; which are masked is drawn once per problem."""
    prompt, answer = _ids(model, problem)
    source = torch.Generator().manual_seed(study.seed * 1_000_003 + number)
    patterns = torch.zeros(len(study.forced.levels), len(answer), dtype=torch.bool)
    for row, level in zip(patterns, study.forced.levels, strict=True):
        row[torch.randperm(len(answer), generator=source)[: max(round(level * len(answer)), 1)]] = True
    scores = masked_scores(model, prompt, answer, patterns, settle=True, settled=after.begin)
    return sum(scores) / len(scores) / len(answer), int(patterns.sum())
