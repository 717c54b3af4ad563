"""Bounds on likelihood that a model was trained on, against plain loops and against whole chains of a tiny vocabulary."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from golden_sets import small
from sinkscope.decoding.likelihood import bound_parts, masked_likelihood, noise_cost, score_part
from sinkscope.models import Model

TEXT = [305, 7, 19, 4, 100, 21, 8, 64, 33, 250, 12]


def two_streams(model: Model, text: list[int], noisy: list[int]) -> Tensor:
    """Log-probabilities [token, vocab] as in training: the noisy text sees its own block and the clean blocks before it."""
    size, count = model.block or 1, len(text)
    blocks = torch.arange(count) // size
    before, same = blocks < blocks[:, None], blocks == blocks[:, None]
    visible = torch.cat([torch.cat([same, before], 1), torch.cat([torch.zeros_like(same), before | same], 1)])
    places = torch.arange(count).repeat(2)[None]
    logits = model.module(torch.tensor([noisy + text]), attention_mask=visible[None, None], position_ids=places).logits
    logits[..., model.mask_id] = -torch.inf
    return logits[0, :count].log_softmax(-1)


def plain_bound(model: Model, text: list[int], read: int) -> float:
    """The sum over blocks of the mean over numbers of masks, one masking and one forward at a time."""
    size, total = model.block or 1, 0.0
    assert model.mask_id is not None
    for start in range(0, len(text), size):
        scored = [place for place in range(start, min(start + size, len(text))) if place >= read]
        for masks in range(1, len(scored) + 1):
            subsets = list(itertools.combinations(scored, masks))
            for subset in subsets:
                noisy = [model.mask_id if place in subset else token for place, token in enumerate(text)]
                found = two_streams(model, text, noisy)
                total += sum(float(found[place, text[place]]) for place in subset) / masks / len(subsets)
    return total


@torch.inference_mode()
@pytest.mark.parametrize("read", [1, 3, 4, 6])
def test_bd3lms_bound_is_a_plain_loop_over_blocks_and_maskings_of_two_streams(read: int) -> None:
    model = small("bd3lm").model
    found = masked_likelihood(model, TEXT[:read], TEXT[read:], samples=15, batch_size=4, greedy=False)
    assert found.value == pytest.approx(plain_bound(model, TEXT, read), abs=1e-4)
    assert found.error == 0


def test_with_fewer_samples_bd3lms_bound_is_estimated_without_bias() -> None:
    model = small("bd3lm").model
    exact = masked_likelihood(model, TEXT[:3], TEXT[3:], samples=15, greedy=False).value
    runs = [masked_likelihood(model, TEXT[:3], TEXT[3:], samples=5, seed=seed, greedy=False) for seed in range(80)]
    values = torch.tensor([run.value for run in runs])
    assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / math.sqrt(len(runs))
    assert 0.5 < sum(run.error for run in runs) / len(runs) / float(values.std()) < 2


# ---- GIDD: every text of two tokens of three, and a chain of many steps

WORDS, MASK = 4, 3
STATES = torch.tensor(list(itertools.product(range(WORDS), repeat=2)))


def guesses() -> Tensor:
    """Chances [state, position, vocab] of some model that reads both tokens; none of the mask."""
    logits = 2 * torch.randn(len(STATES), 2, WORDS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    logits[..., MASK] = -torch.inf
    return logits.softmax(-1)


def levels(time: float, share: float) -> tuple[float, Tensor]:
    """What is left of a token at a time, and the chances of what noise has put there."""
    uniform = math.sqrt(time * (1 - time)) * 2 * share / (1 - share)
    noise = torch.full((WORDS,), uniform / (1 + uniform) / (WORDS - 1), dtype=torch.float64)
    noise[MASK] = time / (1 + uniform)
    return (1 - time) / (1 + uniform), noise


def noisy_chances(clean: Tensor, time: float, share: float) -> Tensor:
    kept, noise = levels(time, share)
    return kept * clean + noise


def reverse(clean: Tensor, here: Tensor, now: float, after: float, share: float) -> Tensor:
    """Chances [..., vocab] of the token at the earlier time, by Bayes' rule over one forward step; here [...] ids."""
    (kept, noise), (kept_after, noise_after) = levels(now, share), levels(after, share)
    ratio = kept / kept_after
    step = ratio * torch.eye(WORDS, dtype=torch.float64) + (noise - ratio * noise_after)  # [earlier, later]
    joint = noisy_chances(clean, after, share) * step.T[here]
    return (joint / joint.sum(-1, keepdim=True)).nan_to_num()  # states that noise never makes


def chain(text: Tensor, times: list[float], share: float) -> tuple[float, float]:
    """Exact log-likelihood of a text under the chain from masks, and the chain's own bound."""
    model, bound = guesses(), 0.0
    clean = torch.nn.functional.one_hot(text, WORDS).double()
    reached = (STATES == MASK).all(1).double()  # chances of the states at time 1
    for now, after in itertools.pairwise(times):
        steps = reverse(model, STATES, now, after, share)  # [state, position, vocab]
        both = steps[:, 0, STATES[:, 0]] * steps[:, 1, STATES[:, 1]]  # [state, earlier state]
        reached = reached @ both
        there = noisy_chances(clean, now, share).gather(1, STATES.T).prod(0)  # [state]
        wanted = reverse(clean.expand_as(model), STATES, now, after, share)
        divergence = torch.where(wanted > 0, wanted * (wanted / steps).log(), 0.0).sum((1, 2))
        bound -= float((there * torch.where(there > 0, divergence, 0.0)).sum())
    return float(reached[(text == STATES).all(1)].log()), bound


def integral(text: Tensor, share: float, steps: int = 2000) -> float:
    """GIDD's bound: the cost of every noisy text, at times t = u³ in the middles of even steps of u."""
    model, clean, total = guesses().flatten(0, 1), torch.nn.functional.one_hot(text, WORDS).double(), 0.0
    for number in range(steps):
        u = torch.tensor((number + 0.5) / steps, dtype=torch.float64)
        there = noisy_chances(clean, float(u**3), share).gather(1, STATES.T).prod(0)
        costs = noise_cost(model, text.repeat(len(STATES)), STATES.flatten(), u**3, share, MASK).view(-1, 2).sum(1)
        total -= float((there * costs).sum() * 3 * u**2) / steps
    return total


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_gidds_bound_is_that_of_an_ever_finer_chain_and_below_its_likelihood(share: float) -> None:
    text = torch.tensor([2, 0])
    share = max(share, math.exp(-20))
    bound = integral(text, share)
    gaps = []
    for steps in (40, 160, 640):
        times = [math.sin(math.pi / 2 * (1 - number / steps)) ** 2 for number in range(steps + 1)]
        exact, own = chain(text, times, share)
        assert own < exact
        gaps.append(abs(own - bound))
    assert bound < exact
    assert all(3.5 < coarse / fine < 5 for coarse, fine in itertools.pairwise(gaps)) and gaps[-1] < 0.02


@torch.inference_mode()
def test_gidds_bound_is_estimated_without_bias() -> None:
    """One token: all that noise can make of it, at even steps of u."""
    model = small("gidd").model
    context, answer, mask = [5, 40, 17], [60], model.mask_id
    assert mask is not None
    share, total, steps = float(model.config.p_uniform), 0.0, 150
    edge, canvases = float(model.config.noise), torch.tensor([[*context, word] for word in range(model.vocabulary)])
    for number in range(steps):
        u = torch.tensor((number + 0.5) / steps, dtype=torch.float64)
        told = (u**3).clamp(edge, 1 - edge).reshape(1)
        hidden = model.module.base_model(canvases, time=told).last_hidden_state
        logits = model.family.head(model.module, hidden[:, -1]).double()
        logits[:, mask] = -torch.inf
        uniform = float((u**3 * (1 - u**3)).sqrt() * 2 * share / (1 - share))
        there = torch.full((model.vocabulary,), uniform / (1 + uniform) / (model.vocabulary - 1), dtype=torch.float64)
        there[mask] = float(u**3) / (1 + uniform)
        there[answer[0]] += (1 - float(u**3)) / (1 + uniform)
        words = torch.arange(model.vocabulary)
        costs = noise_cost(logits.softmax(-1), torch.tensor(answer).expand(len(words)), words, u**3, share, mask)
        total -= float((there * costs).sum() * 3 * u**2) / steps
    (part,) = bound_parts(model, len(context), len(answer), 4000, 3)
    scores = torch.tensor(score_part(model, context, answer, part, settle=False))
    assert abs(float(scores.mean()) - total) < 4 * float(scores.std()) / math.sqrt(len(scores))
