"""Surgery on row 0: its masks, and a causal mask without surgery is the model itself."""

import pytest
import torch

import sinkscope as sk
from lab.experiments import row0
from sinkscope.tasks import problems


def test_surgery_changes_row_0_alone() -> None:
    causal, seeing, both, alone = (row0.mask_of(name, 4)[0, 0] for name in row0.MASKS)
    assert torch.equal(causal, torch.ones(4, 4).tril().bool()) and bool(both.all())
    assert seeing[0].all() and torch.equal(seeing[1:], causal[1:])
    assert alone[0].tolist() == [True, False, False, False] and torch.equal(alone[1:], both[1:])


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
def test_without_surgery_it_is_the_model_itself(name: str) -> None:
    model = sk.load(name)
    problem = next(iter(problems("arithmetic", n=1)))
    prompt = model.encode(problem.prompt)
    ids = torch.cat([prompt, model.encode(problem.answer)[:, -6:]], 1)
    mask = "causal" if model.causal else "bidirectional"
    with torch.inference_mode():
        own = model.module(ids, use_cache=False).logits
    torch.testing.assert_close(row0.logits(model, ids, row0.mask_of(mask, ids.shape[1])), own, rtol=1e-4, atol=1e-4)
    found = row0.likelihood(model, ids, prompt.shape[1], mask)
    assert found is not None
    if model.causal:  # the chain rule in one forward
        places = torch.arange(prompt.shape[1], ids.shape[1])
        expected = own[0, places - 1].log_softmax(-1).gather(1, ids[0, places][:, None]).mean()
        assert found == pytest.approx(float(expected), abs=1e-4)
    assert row0.likelihood(model, ids, prompt.shape[1], "bidirectional" if model.causal else "causal") is None
