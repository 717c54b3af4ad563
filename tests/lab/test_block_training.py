"""The recipes of tiny-sdar and tiny-nemotron: a run is resumed to the same bits, and the checkpoints are what they describe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lab import nemotron
from lab.block_recipe import BlockRecipe, block_recipe_names, find_block_recipe
from lab.blocks import BlockRun, noised, start_module, two_streams
from lab.data import Coder, chunks_of, rng_of
from lab.errors import TrainingError
from lab.evaluate import evaluate
from lab.export import ZOO
from lab.recipe import load_recipe
from lab.train import main as command
from lab.train import train
from sinkscope.models.load import load


@pytest.fixture(scope="module")
def shipped() -> BlockRecipe:
    found = find_block_recipe("tiny-sdar")
    assert found is not None and block_recipe_names() == ["tiny-nemotron", "tiny-sdar"]
    return found


def test_a_resumed_run_gives_the_same_bits(shipped: BlockRecipe, tmp_path: Path) -> None:
    small = replace(shipped, steps=4, batch=4, save_every=2, log_every=1)
    whole = train(small, tmp_path / "whole", quiet=True)
    broken = BlockRun(small, _opened(small, tmp_path / "broken"))
    for _ in range(2):
        broken.one_step()
    broken.save()
    broken.one_step()  # lost: the process ended before the next save
    again = train(small, tmp_path / "broken", quiet=True)
    one, two = (load_file(folder / "model.safetensors") for folder in (whole, again))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    curves = [(tmp_path / name / "curve.jsonl").read_text().splitlines() for name in ("whole", "broken")]
    assert json.loads(curves[0][-1])["loss"] == json.loads(curves[1][-1])["loss"]
    made = load(str(whole))
    assert (made.family.name, made.block) == ("sdar", 4) and made.generate("2 plus 3?") is not None
    with pytest.raises(TrainingError, match="differs in seed"):
        train(replace(small, seed=5), tmp_path / "whole", quiet=True)


def _opened(recipe: BlockRecipe, out: Path) -> Path:
    from lab import checkpoint

    checkpoint.open_folder(out, recipe, resume=True)
    return out


def test_the_shipped_checkpoint_is_what_the_recipe_describes(shipped: BlockRecipe) -> None:
    module, config = start_module(shipped, load(shipped.start))
    assert json.loads((ZOO / "tiny-sdar" / "config.json").read_text()) == config
    stored = load_file(ZOO / "tiny-sdar" / "model.safetensors")
    assert {name: part.shape for name, part in stored.items()} == {
        name: part.shape for name, part in module.named_parameters()
    }
    card = (ZOO / "tiny-sdar" / "README.md").read_text(encoding="utf-8")
    assert f"{shipped.steps} steps, seed {shipped.seed}, {shipped.batch} problems per step" in card
    assert f"rate {shipped.rate} falling to 0, running mean {shipped.ema}" in card
    assert load_recipe("tiny-llada").data == shipped.data  # as the card says


def test_the_shipped_model_of_two_modes_is_what_the_recipe_describes() -> None:
    recipe = find_block_recipe("tiny-nemotron")
    assert recipe is not None
    module, config = nemotron.start_module(recipe, load(recipe.start))
    assert json.loads((ZOO / "tiny-nemotron" / "config.json").read_text()) == config
    stored = load_file(ZOO / "tiny-nemotron" / "model.safetensors")
    assert {name: part.shape for name, part in stored.items()} == {
        nemotron.stored_name(name): part.shape for name, part in module.named_parameters()
    }
    card = (ZOO / "tiny-nemotron" / "README.md").read_text(encoding="utf-8")
    assert f"{recipe.steps} steps, seed {recipe.seed}, {recipe.batch} problems per step" in card
    assert f"rate {recipe.rate} falling to 0, running mean {recipe.ema}" in card


@pytest.mark.parametrize("mode", ["autoregressive", "diffusion"])
def test_the_shipped_model_answers_in_both_modes(mode: str) -> None:
    """Its card says that it solves nearly all sums and combined commands; 20 of each are asked here."""
    scores = evaluate("tiny-nemotron", n=20, kinds=["arithmetic", "composition"], mode=mode)
    assert all(score.accuracy >= 0.85 for score in scores)


def test_noise_and_streams_are_those_of_decoding(shipped: BlockRecipe) -> None:
    """Every block of an answer has a mask; a noised block sees itself and the clean blocks before it, and no more."""
    tokenizer = load(shipped.start).require_tokenizer()
    rows = chunks_of(shipped.drawing, Coder.of(tokenizer), 0)[0]
    start = int(rows.prompt.min()) // 4 * 4
    ids, weight = noised(shipped, rows, start, 3, rng_of(0, 0, 2))
    assert torch.equal(ids == 3, weight > 0) and abs(float(weight.sum()) - 1) < 1e-5
    for row in range(len(rows)):
        first = int(rows.prompt[row]) - start
        assert not bool((ids[row, :first] == 3).any())
        assert all(
            bool((ids[row, max(left, first) : left + 4] == 3).any()) for left in range(first // 4 * 4, ids.shape[1], 4)
        )
    length = 12
    visible, positions = two_streams(length, 4, 4)
    for query in range(visible.shape[2]):
        for key in range(visible.shape[3]):
            before = positions[0, key] // 4 < positions[0, query] // 4
            same = positions[0, key] // 4 == positions[0, query] // 4 and (key < length) == (query < length)
            assert bool(visible[0, 0, query, key]) == bool((before and key < length) or same)


def test_the_command_refuses_what_no_recipe_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("{name: x, start: tiny-llada, steps: 1, block: 0}")
    assert command([str(file), "-o", str(tmp_path / "out")]) == 2
    assert "block must be a whole number" in capsys.readouterr().err
    assert command(["no-such-recipe", "-o", str(tmp_path / "out")]) == 2
    assert "tiny-sdar" in capsys.readouterr().err


def test_one_set_of_weights_learns_both_ways(tmp_path: Path) -> None:
    recipe = find_block_recipe("tiny-nemotron")
    assert recipe is not None
    source = load(recipe.start)
    module, _ = nemotron.start_module(recipe, source)
    ids = source.encode("Tom has 12 apples.")
    with torch.inference_mode():  # nothing is lost before training begins
        torch.testing.assert_close(module.eval()(ids).logits, source.logits(ids), atol=1e-4, rtol=0)
    small = replace(recipe, steps=2, batch=4, save_every=2, log_every=1)
    made = load(train(small, tmp_path / "run", quiet=True))
    assert made.family.name == "nemotron_labs_diffusion" and made.defaults.block == 8
    assert all(isinstance(made.in_mode(mode).generate("2 plus 3?"), str) for mode in made.family.modes)


def test_a_noised_block_sees_the_text_before_it_and_itself() -> None:
    recipe = find_block_recipe("tiny-nemotron")
    assert recipe is not None
    source = load(recipe.start)
    rows = chunks_of(recipe.drawing, Coder.of(source.require_tokenizer(), recipe.data.begin), 0)[0]
    start, length = int(rows.prompt.min()), rows.ids.shape[1]
    ids, weight = nemotron.noised(recipe, rows, start, 7, rng_of(0, 0, 2))
    visible, positions = nemotron.two_streams(rows, start, recipe.block)
    for row in range(2):
        prompt = int(rows.prompt[row])
        assert not bool(weight[row, prompt - start :: recipe.block].any())  # first tokens are given
        for query in range(0, len(positions[0]), 7):
            at = int(positions[0, query])
            block = (at - prompt) // recipe.block
            for key in range(len(positions[0])):
                there = int(positions[0, key])
                if query < length:
                    sees = key < length and there <= at
                elif key < length:
                    sees = there < prompt + block * recipe.block
                else:
                    sees = (there - prompt) // recipe.block == block
                assert bool(visible[row, 0, query, key]) == sees
    assert bool((ids[weight > 0] == 7).all())
