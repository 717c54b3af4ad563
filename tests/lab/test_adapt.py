"""Adapters: exact gradients, the same problems for both twins, and what is exported is what was trained."""

import copy
import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import sinkscope as sk
from lab import checkpoint
from lab.adapt import ENDS, AdapterRun, random_prefix
from lab.adaptation import adaptation_from_dict, adaptation_names, find_adaptation
from lab.data import draw_problems, rng_of
from lab.errors import TrainingError
from lab.lora import FrozenHead, LowRank, MergedProduct, TrainedRow, merge_all
from lab.train import train

SMALL = {
    "name": "small-dream", "base": "tiny-llama", "family": "dream", "mask_token": "<|mdm_mask|>", "steps": 4,
    "rank": 2, "alpha": 4, "batch": 4, "chunks": 2, "frozen": "float32", "save_every": 2, "log_every": 1, "keep": [1],
    "data": {"kinds": {"recall": 1, "arithmetic": 1}, "canvas": [0, -16]},
    "objective": {"whole": 0, "blockwise": 0.5, "block": 8},
    "optimiser": {"matrices": "adamw", "rate": 0.01, "weight_decay": 0, "warmup": 1, "ema": 0.5},
    "decode": {"length": 16, "steps": 16},
}  # fmt: skip


def small(**changes):
    return adaptation_from_dict({**SMALL, **changes})


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 6), st.integers(1, 3), st.integers(0, 9))
def test_the_merged_product_has_the_gradients_of_the_plain_sum(rows, wide, high, rank, seed):
    torch.manual_seed(seed)
    x, w = torch.randn(2, rows, wide), torch.randn(high, wide)
    a, b, out = torch.randn(rank, wide), torch.randn(high, rank), torch.randn(2, rows, high)
    found, plain = ([t.clone().requires_grad_() for t in (x, a, b)] for _ in range(2))
    scale = 1.5
    (MergedProduct.apply(*found, w + scale * b @ a, scale) * out).sum().backward()
    y = plain[0] @ w.mT + scale * (plain[0] @ plain[1].mT) @ plain[2].mT
    (y * out).sum().backward()
    for mine, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_a_trained_row_counts_in_a_tied_head_and_nowhere_else():
    table = torch.nn.Embedding(9, 4)
    row = TrainedRow(table, 3)
    with torch.no_grad():
        row.row += 1
        changed = table.weight.clone()
        changed[3] += 1
        hidden = torch.randn(2, 4)
        torch.testing.assert_close(FrozenHead(table.weight, row, torch.float32)(hidden), hidden @ changed.mT)
        torch.testing.assert_close(FrozenHead(table.weight, None, torch.float32)(hidden), hidden @ table.weight.mT)
        ids = torch.tensor([[3, 1, 3, 8]])
        torch.testing.assert_close(row(ids), changed[ids])


def test_what_is_exported_is_what_was_trained(tmp_path):
    peft = pytest.importorskip("peft")
    recipe = small()
    made = train(recipe, tmp_path / "run", quiet=True)
    model = sk.load(made)
    assert (model.family.name, model.mask_id, model.causal, model.defaults.length) == ("dream", 3, False, 16)
    ids = model.encode("Card: number 4, name Bob.\nWhat is the number?")
    ids = torch.cat([ids, torch.full((1, 4), 3)], 1)
    run = AdapterRun(recipe, tmp_path / "run")
    for name, mean in run.optimisation.mean_weights().items():  # stored rounded, so compare rounded
        run.optimisation.parameters[name].data.copy_(mean.bfloat16().float())
    merge_all(run.module)
    with torch.no_grad():
        trained = run.module(ids, is_causal=False).logits
        base = sk.load("tiny-llama")
        assert not torch.allclose(base.module(ids, is_causal=False).logits, trained, atol=1e-2)
        wrapped = peft.PeftModel.from_pretrained(copy.deepcopy(base.module).double(), str(made)).double().eval()
        theirs = wrapped(ids, is_causal=False).logits
    torch.testing.assert_close(model.logits(ids), trained, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sk.load(made, dtype="float64").logits(ids), theirs, atol=1e-8, rtol=1e-8)
    assert sk.load(tmp_path / "run" / "kept" / "step-00001").fingerprint != model.fingerprint


def test_a_run_in_two_parts_ends_at_the_same_bits(tmp_path):
    train(small(), tmp_path / "whole", quiet=True)
    half = AdapterRun(small(), tmp_path / "parts")
    checkpoint.open_folder(tmp_path / "parts", small(), True)
    for _ in range(2):
        half.one_step()
    half.save()
    train(small(), tmp_path / "parts", quiet=True)
    one, two = (load_file(tmp_path / name / checkpoint.STATE) for name in ("whole", "parts"))
    assert set(one) == set(two)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_that_was_begun_before_a_field_was_there_is_resumed(tmp_path):
    train(small(), tmp_path / "run", quiet=True)
    path = tmp_path / "run" / checkpoint.RECIPE
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("prefix:")))
    checkpoint.open_folder(tmp_path / "run", small(), True)
    with pytest.raises(TrainingError, match="differs in prefix"):
        checkpoint.open_folder(tmp_path / "run", small(prefix="varied"), True)


def test_prompts_without_a_constant_beginning(tmp_path):
    words = ["apple", "bird", "cloud"]
    starts = [random_prefix(rng_of(1, step, 3), words) for step in range(40)]
    assert "" in starts and len(set(starts)) > 10 and all(start == "" or start.endswith(ENDS) for start in starts)
    assert starts == [random_prefix(rng_of(1, step, 3), words) for step in range(40)]
    with pytest.raises(TrainingError, match="varied needs words"):  # its words are spelled otherwise than a BPE's
        AdapterRun(small(prefix="varied"), tmp_path)


def test_a_later_part_goes_on_from_the_state_or_from_the_adapter_that_was_written(tmp_path):
    first = train(small(), tmp_path / "small-dream", quiet=True)
    later = small(name="later", start="small-dream")
    exact = AdapterRun(later, tmp_path / "later")
    (tmp_path / "small-dream" / "state.safetensors").unlink()
    rounded = AdapterRun(later, tmp_path / "again")
    assert exact.step == rounded.step == 0
    for name, parameter in rounded.optimisation.parameters.items():
        assert parameter.abs().sum() > 0 or "lora_B" in name
        assert torch.equal(parameter, exact.optimisation.parameters[name].bfloat16().float())
    with pytest.raises(TrainingError, match="same rank"):
        AdapterRun(small(name="other", start="small-dream", rank=3), tmp_path / "other")
    first.rename(tmp_path / "gone")
    with pytest.raises(TrainingError, match="train that one into"):
        AdapterRun(later, tmp_path / "never")


def test_twins_see_the_same_problems():
    dream, llama = find_adaptation("smol-dream-first"), find_adaptation("smol-llama")
    for step in (0, 7, 300):
        assert draw_problems(dream, step) == draw_problems(llama, step)
    assert (dream.base, dream.rank, dream.alpha, dream.batch) == (llama.base, llama.rank, llama.alpha, llama.batch)


@pytest.mark.parametrize("name", adaptation_names())
def test_every_adaptation_that_ships_can_be_read_and_written(name):
    recipe = find_adaptation(name)
    assert recipe.name == name
    assert adaptation_from_dict(recipe.to_dict()) == recipe


def test_a_causal_adapter_learns_its_problems(tmp_path):
    kinds = {"kinds": {"errands": 1}, "difficulty": {"errands": 1}}  # of which tiny-llama knows nothing
    recipe = small(family="llama", mask_token=None, steps=12, objective={"prompt": 0}, name="small-llama", data=kinds)
    run = AdapterRun(recipe, tmp_path)
    losses = []
    for _ in range(12):
        run.step = 0  # one batch again and again
        losses.append(run.one_step().loss)
    assert losses[-1] < 0.7 * losses[0]
    assert all(isinstance(part, LowRank) for name, part in run.module.named_modules() if name.endswith("_proj"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"family": "llada"}, "llama or dream"),
        ({"mask_token": None}, "needs a mask_token"),
        ({"rank": 0}, "rank must be a whole number"),
        ({"frozen": "int8"}, "bfloat16 or float32"),
        ({"batch": 3}, "multiple of chunks"),
        ({"colour": 1}, "unknown fields colour"),
        ({"data": {"kinds": {"chess": 1}}}, "chess"),
        ({"mask_token": "<|none|>"}, "mask_token"),
    ],
)
def test_bad_recipes_are_told_in_one_sentence(changes, says, tmp_path):
    from sinkscope.errors import SinkscopeError

    with pytest.raises(SinkscopeError, match=says):
        train(small(**changes), tmp_path / "run", quiet=True)


def test_the_command_finds_adapters_too(tmp_path):
    import yaml

    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small(steps=1).to_dict()))
    made = train(path, tmp_path / "run", quiet=True)
    assert (made / "adapter_model.safetensors").is_file()
    assert len(list(itertools.chain(made.iterdir()))) == 4
    with pytest.raises(TrainingError, match="holds a run already"):
        train(path, tmp_path / "run", resume=False, quiet=True)


def test_sinks_over_a_run(tmp_path, capsys):
    from lab.experiments import over_adaptation

    train(small(), tmp_path / "run", quiet=True)
    out = tmp_path / "results"
    assert over_adaptation.main([str(tmp_path / "run"), "--out", str(out)]) == 0
    found = json.loads((out / "adaptation.json").read_text())
    steps = [(row["step"], row["causal"]) for row in found]
    assert steps == [(0, True), (0, False), (0, False), (1, False), (4, False)]
    assert found[2]["run"].endswith("no masks") and found[2]["masks"] == 0 and found[2] != found[1]
    assert (out / "adaptation.png").stat().st_size > 1000
    for row in found:
        assert all(0 <= row[name] <= 1 for name in ("first", "top_is_first", "strong", "static", "masks", "structural"))
    # The last one again, by the plain way: the exported adapter loaded, eager attention, one head after the other.
    model = sk.load(tmp_path / "run" / "model")
    model.module.set_attn_implementation("eager")
    firsts, tops = [], []
    for whole, prompt in over_adaptation.sequences(sk.load("tiny-llama")):
        for known in range(prompt, prompt + 40, 8):
            ids = whole.clone()
            ids[:, known:] = 3
            with torch.no_grad():
                maps = model.module(ids, output_attentions=True, is_causal=False).attentions
            for layer in maps:
                for head in layer[0]:
                    column = head.mean(0)
                    firsts.append(float(column[0]))
                    tops.append(int(column.argmax()) == 0)
    assert found[-1]["first"] == pytest.approx(sum(firsts) / len(firsts), abs=2e-4)
    assert found[-1]["top_is_first"] == pytest.approx(sum(tops) / len(tops), abs=2e-3)
    capsys.readouterr()
    assert over_adaptation.main([str(tmp_path / "run"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""  # what is known is not looked at again
    assert over_adaptation.main([str(tmp_path / "none"), "--out", str(out)]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
