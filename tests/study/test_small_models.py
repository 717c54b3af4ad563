"""The study `small` on the golden checkpoints of its families, which speak in single characters here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import sinkscope as sk
from golden_sets import small
from sinkscope.decoding.likelihood import Maskings, score_part
from sinkscope.study.units.likelihood import held_out, windows

LETTERS = [chr(code) for code in range(32, 126)] + ["\n"]


def speaking(family: str, folder: Path, **changes: Any) -> str:
    """A golden checkpoint with a tokenizer of characters."""
    folder.mkdir()
    config = {**json.loads((small(family).folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(small(family).folder / "model.safetensors", folder)
    first = 4 if family == "gidd_v2" else 0  # behind its special tokens
    tokenizer = Tokenizer(models.WordLevel({one: first + place for place, one in enumerate(LETTERS)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def smaller(models: list[str], texts: Path | None = None, **words: Any) -> sk.Study:
    plan = sk.Study.load("small").changed(models, problems=1, texts=texts).to_dict()
    plan["likelihood"] |= {"texts": 2, "scored": 12, "samples": 4, **words}
    return sk.Study.from_dict({**plan, "decode": {"length": 8, "steps": 8}, "trace": {"problems": 1, "keep": 1}})


def test_sinks_and_nats_of_every_family(tmp_path: Path) -> None:
    names = [speaking(family, tmp_path / family) for family in ("mdlm", "bd3lm", "gidd", "sedd")]
    done = sk.run(smaller(names), out=tmp_path / "run")
    rows = done.results["likelihood"]
    assert {row["model"] for row in rows} == {"mdlm", "bd3lm", "gidd", "sedd"}
    assert all(row["unit"] == "nats per token" and row["of"] == "texts" and not row["causal"] for row in rows)
    plain = {row["model"]: row["value"] for row in rows if row["condition"]["name"] == "none"}
    for row in rows:
        if row["condition"]["name"] == "noop":
            assert row["value"] == plain[row["model"]]
        if row["condition"]["name"] == "mask_sinks":
            assert row["mass_share"] > 0 and row["low"] <= row["value"] <= row["high"]
    assert {row["model"] for row in done.results["dynamics"]} == set(plain)
    assert "Nats per token of held-out text" in done.summary()


def test_the_built_in_key_is_a_condition(tmp_path: Path) -> None:
    name = speaking("gidd_v2", tmp_path / "gidd_v2", max_position_embeddings=120)
    hidden = {"name": "mask_built_in"}
    plan = smaller([name], conditions=["none", hidden]).to_dict()
    study = sk.Study.from_dict(
        {**plan, "decode": {"length": 8, "block": 4, "steps": 4}, "conditions": ["none", "noop", hidden]}
    )
    done = sk.run(study, out=tmp_path / "run")
    row = next(row for row in done.results["likelihood"] if row["condition"]["name"] == "mask_built_in")
    assert row["mass_share"] > 0 and row["difference"] != 0


def test_texts_of_ones_own(tmp_path: Path) -> None:
    name = speaking("mdlm", tmp_path / "mdlm")
    mine = tmp_path / "mine.txt"
    mine.write_text("The first passage is here, and long.\n\n\nA second one, which is as long as that.\n")
    study = smaller([name], mine)
    assert study.likelihood.file == str(mine) and sk.Study.from_dict(study.to_dict()) == study
    assert [text.strip()[:5] for text in held_out(str(mine))] == ["The f", "A sec"]
    done = sk.run(study, out=tmp_path / "run")
    assert {row["n"] for row in done.results["likelihood"]} == {2}
    with pytest.raises(sk.SinkscopeError, match="at most 2"):
        windows(sk.load(name), 3, 8, str(mine))


def test_the_bound_is_the_models_own_distribution(tmp_path: Path) -> None:
    """One mask: the logarithm of its probability among all tokens but the mask, times the number of tokens."""
    model = small("mdlm").model
    text = [5, 9, 13, 20, 8, 30]
    pattern = torch.tensor([[False, True, False, False]])
    (found,) = score_part(model, text[:2], text[2:], Maskings(pattern), settle=False)
    ids = torch.tensor([text])
    ids[0, 3] = model.mask_id
    logits = model.logits(ids)[0, 3].clone()
    logits[model.mask_id] = -torch.inf
    assert found == pytest.approx(4 * float(logits.log_softmax(-1)[text[3]]), abs=1e-5)
