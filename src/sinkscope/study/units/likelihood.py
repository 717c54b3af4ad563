"""How likely held-out text is under a condition, read token by token: what masking costs a model that solves no problems.

The first tokens are read at once and left alone. From then on each token is one forward, as when the model writes.
Interventions that rank the map of the last forward act as they do there. Only the tokens are given instead of chosen.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from sinkscope.attention.observe import observe
from sinkscope.errors import StudyError
from sinkscope.evals.scoring import read_spans
from sinkscope.interventions.conditions import Condition
from sinkscope.models.base import Model
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit, UnitKind, Workload
from sinkscope.study.units.given import changed, model_for

TEXTS = Path(__file__).parent / "texts.yaml"


class LikelihoodKind(UnitKind):
    """Every condition of `likelihood`, all texts at once."""

    name = "likelihood"
    order = 40
    unchanged = "value"
    what = "the likelihood of text"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        plan = study.likelihood
        conditions = plan.conditions if info.asked in plan.models else ()
        return [Unit("likelihood", info.asked, one, shown=info.name, last=plan.texts) for one in conditions]

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        texts, read, scored = study.likelihood.texts, study.likelihood.read, study.likelihood.scored
        found = [Workload(1, texts, read, read, 1), Workload(scored, texts, 1, read + scored // 2, 1)]
        if unit.condition == Condition("none"):  # once more, to see what the first key receives
            found.append(Workload(1, texts, *[read + scored + 1] * 3))
        return found

    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        """Mean log-likelihood a token (nats) of each text; without intervention also what key 0 receives, layer by layer."""
        model = model_for(study, unit)
        plan = study.likelihood
        ids = windows(model, plan.texts, plan.read + plan.scored + 1).to(model.device)
        with changed(study, unit, model, range(plan.texts)) as taken:
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


@cache
def held_out() -> list[str]:
    """Passages that were written for this purpose, so that no model was trained on them."""
    found: list[str] = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    return found


def windows(model: Model, count: int, size: int) -> Tensor:
    """[text, position]: the first `size` tokens of each of `count` passages, as plain text."""
    passages = held_out()
    if count > len(passages):
        raise StudyError(
            f"Expected at most {len(passages)} held-out texts, the study asks for {count}; lower likelihood.texts."
        )
    rows = [model.encode(passage.strip(), chat=False)[0] for passage in passages[:count]]
    shortest = min(len(row) for row in rows)
    if shortest < size:
        raise StudyError(
            f"Expected read + scored of at most {shortest} tokens, which the shortest held-out text has for {model.name}, "
            f"got {size}; lower likelihood.read or likelihood.scored."
        )
    return torch.stack([row[:size] for row in rows])


@torch.inference_mode()
def first_key_shares(model: Model, ids: Tensor) -> list[float]:
    """Share of attention on key 0, a layer, over all queries but the first (which has no other key to look at)."""
    with observe(model) as seen:
        model.logits(ids)
    queries = ids.shape[1]
    return [float(((received.sum(2)[..., 0] - 1) / (queries - 1)).double().mean()) for received in seen.received]
