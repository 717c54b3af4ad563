"""Interventions on activations: nothing where they should do nothing, and what was planted where they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import sinkscope as sk
from made_models import make_llada
from sinkscope.conditions import Condition
from sinkscope.errors import InterventionError
from sinkscope.models import pad

LOUD, WIDTH = 7, 32  # the planted channel, of 32
SETTINGS = sk.Decode.llada(length=8, block=4, steps=8)
GUIDED = sk.Decode.llada(length=8, block=4, steps=8, guidance=0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> sk.Model:
    """A random model with a loud channel in every embedding, and a head (1.2) that nobody listens to."""
    made = sk.load(make_llada(tmp_path_factory.mktemp("planted")))
    module: Any = made.module
    with torch.no_grad():
        module.model.embed_tokens.weight[:, LOUD] = 40.0
        module.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0.0
    return made


@pytest.fixture(scope="module")
def batch(model: sk.Model) -> tuple[Tensor, Tensor]:
    return pad(
        [torch.randint(4, 60, (1, size), generator=torch.Generator().manual_seed(size)) for size in (3, 6)], model
    )


def decoded(
    model: sk.Model,
    batch: tuple[Tensor, Tensor],
    change: sk.interventions.Intervention | None,
    settings: sk.Decode = SETTINGS,
) -> Any:
    if change is None:
        return sk.decode(model, batch[0], settings, attention_mask=batch[1]).history, None
    with sk.intervene(model, change) as active:
        return sk.decode(model, batch[0], settings, attention_mask=batch[1]).history, active.effect


ONES = [1.0] * WIDTH
NOOPS = [
    sk.Steer(ONES, strength=0.0), sk.AblateChannels(top=0), sk.AblateChannels(channels=()), sk.ZeroAttention(()),
    sk.Steer(ONES, strength=9.0, steps=(8, None)), sk.AblateChannels(top=2, steps=(1.0, None)),
    sk.ZeroAttention(((0, 0),), steps=(30, 40)), sk.Steer([0.0] * WIDTH, strength=3.0),
]  # fmt: skip
CHANGES = [
    sk.Steer(ONES, strength=3.0), sk.Steer(ONES, layers=(1,), strength=-3.0, at="masked"),
    sk.Steer(ONES, of="random", strength=3.0), sk.AblateChannels(channels=(LOUD,)), sk.AblateChannels(top=3),
    sk.AblateChannels(top=3, of="random"), sk.ZeroAttention(((0, 0), (1, 1))),
    sk.ZeroAttention(((0, 0),), of="random", steps=(0.5, None)),
]  # fmt: skip


@pytest.mark.parametrize("change", NOOPS, ids=repr)
def test_what_changes_nothing_is_bit_identical(model: sk.Model, batch: Any, change: Any) -> None:
    plain, _ = decoded(model, batch, None)
    done, effect = decoded(model, batch, change)
    assert torch.equal(done, plain) and effect.moved_share == 0


@pytest.mark.parametrize("settings", [SETTINGS, GUIDED], ids=["plain", "guided"])
@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_took_effect_and_rows_of_a_padded_batch_equal_rows_alone(
    model: sk.Model, batch: Any, change: Any, settings: sk.Decode
) -> None:
    done, effect = decoded(model, batch, change, settings)
    assert effect.moved_share > 0 and effect.to_dict()["moved_share"] == effect.moved_share
    for row, length in enumerate((3, 6)):
        prompt = batch[0][row : row + 1, -length:]
        alone, _ = decoded(model, (prompt, torch.ones_like(prompt)), change, settings)
        assert torch.equal(done[-1, row, 6:], alone[-1, 0, length:])


def test_the_planted_channel_is_found_and_taken_and_its_control_matches_in_norm(model: sk.Model, batch: Any) -> None:
    seen: dict[str, Tensor] = {}
    changes = {
        "plain": sk.AblateChannels(top=0), "named": sk.AblateChannels(channels=(LOUD,)), "top": sk.AblateChannels(top=1),
        "random": sk.AblateChannels(top=1, of="random"),
    }  # fmt: skip
    for name, change in changes.items():

        def keep(activation: Tensor, context: sk.HookContext, name: str = name) -> None:
            if context.step == 0:
                seen[name] = activation.clone()

        with sk.intervene(model, change), sk.hook(model, "layers.0.resid_post", keep):
            sk.decode(model, batch[0], SETTINGS, attention_mask=batch[1])
    real = batch[1].bool()
    assert torch.equal(seen["top"][:, :6][real], seen["named"][:, :6][real])
    changed = (seen["top"] != seen["plain"]).any(1)
    assert changed.nonzero()[:, 1].tolist() == [LOUD, LOUD] and bool((seen["top"][..., LOUD] == 0).all())
    others = (seen["random"] != seen["plain"]).any(1).nonzero()[:, 1].tolist()
    assert len(others) == 2 and LOUD not in others
    lengths = [(seen[name] - seen["plain"]).norm(dim=-1)[:, :6][real] for name in ("top", "random")]
    assert torch.allclose(*lengths, rtol=1e-5)


def test_the_control_takes_once_what_the_residual_stream_keeps(tmp_path: Path, batch: Any) -> None:
    """In a model whose layers write nothing, the control's channel has lost the loud one's value behind every layer."""
    made = sk.load(make_llada(tmp_path / "still"))
    module: Any = made.module
    with torch.no_grad():
        module.model.embed_tokens.weight[:, LOUD] = 40.0
        for layer in module.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    embedded = module.model.embed_tokens(batch[0]).detach()
    seen: list[Tensor] = []
    control = sk.AblateChannels(top=1, of="random")
    with sk.intervene(made, control), sk.hook(made, "resid_post", lambda x, _: seen.append(x)):
        for _ in range(2):  # the second forward begins anew
            made.logits(batch[0])
    for state in seen:
        lost = (state - embedded).abs().amax((0, 1))
        assert lost.nonzero().numel() == 1 and float(lost.max()) == pytest.approx(40.0) and float(lost[LOUD]) == 0
    seen.clear()
    with sk.intervene(made, sk.AblateChannels(top=1)), sk.hook(made, "resid_post", lambda x, _: seen.append(x)):
        made.logits(batch[0])
    for state in seen:  # and the ablation takes the loud one in every layer, not the next largest
        assert (state - embedded).abs().amax((0, 1)).nonzero().flatten().tolist() == [LOUD]
    steered: list[Tensor] = []
    with sk.intervene(made, sk.Steer(ONES, of="random")), sk.hook(made, "resid_post", lambda x, _: steered.append(x)):
        made.logits(batch[0])
    assert torch.allclose(steered[1] - embedded, 2 * (steered[0] - embedded), atol=1e-4)


def test_the_idle_head_is_found_and_no_other(model: sk.Model, batch: Any) -> None:
    plain = model.logits(batch[0])
    idle = []
    for layer in range(2):
        for head in range(4):
            with sk.intervene(model, sk.ZeroAttention(((layer, head),))) as active:
                same = torch.allclose(model.logits(batch[0]), plain, atol=1e-4)
            assert active.effect.moved_share > 0
            idle += [(layer, head)] if same else []
    assert idle == [(1, 2)]


def test_a_planted_direction_steers_to_its_token_and_a_random_one_does_not(model: sk.Model, batch: Any) -> None:
    """The head's row of a token, behind the last layer, makes that token the likeliest; as long a random one does not."""
    token, module = 11, model.module
    row: Any = (module.lm_head.weight[token] * module.model.norm.weight).detach()  # type: ignore[union-attr]
    row = row.clone().index_fill(0, torch.tensor([LOUD]), 0.0)
    steer = {"vector": row / row.norm(), "layers": (1,), "strength": 500.0}
    done, _ = decoded(model, batch, sk.Steer(**steer))
    assert bool((done[-1, :, 6:] == token).all())
    for seed in range(5):
        other, _ = decoded(model, batch, sk.Steer(**steer, of="random", seed=seed))
        assert float((other[-1, :, 6:] == token).float().mean()) < 0.5
    late, _ = decoded(model, batch, sk.Steer(**steer, steps=(0.5, None)))
    assert torch.equal(late[:5], decoded(model, batch, None)[0][:5]) and bool((late[-1, :, 10:] == token).all())


def test_sinks_are_steered_and_nothing_else() -> None:
    model = sk.load("tiny-llada")
    seen: dict[int, Tensor] = {}

    def look(activation: Tensor, context: sk.HookContext) -> None:
        if context.sinks is not None and context.layer == 2:
            moved = (activation[0].abs() > 400).any(-1)
            assert torch.equal(moved, context.sinks[0] if context.step >= 4 else torch.zeros_like(moved))
            seen[context.step] = moved

    steer = sk.Steer(torch.full((model.config.hidden_size,), 500.0), layers=(2,), at="sinks", steps=(4, None))
    with sk.intervene(model, steer) as active, sk.hook(model, "resid_post", look):
        model.generate("Tom has 3 apples. How many?", length=8, steps=8)
    assert active.effect.moved_share > 0 and any(bool(moved.any()) for moved in seen.values())


def test_a_vector_from_a_file_is_the_same(model: sk.Model, batch: Any, tmp_path: Path) -> None:
    vector = torch.randn(WIDTH)
    save_file({"vector": vector}, tmp_path / "a.safetensors")
    save_file({"vector": torch.stack([vector, vector * 0])}, tmp_path / "b.safetensors")
    one = decoded(model, batch, sk.Steer(vector, layers=(0,), strength=2.0))[0]
    assert torch.equal(one, decoded(model, batch, sk.Steer(tmp_path / "a.safetensors", layers=(0,), strength=2.0))[0])
    assert torch.equal(one, decoded(model, batch, sk.Steer(str(tmp_path / "b.safetensors"), strength=2.0))[0])
    (condition,) = Condition.read({"name": "steer", "vector": str(tmp_path / "a.safetensors"), "steps": [0.0, 0.5]})
    assert condition.seeded(0).steps == (0.0, 0.5) and "a by 1" in condition.label
    with pytest.raises(ValueError, match="safetensors"):
        Condition.read({"name": "steer", "vector": "gone.safetensors"})


def test_with_traces_and_attention_interventions_at_once(model: sk.Model, batch: Any) -> None:
    changes = [sk.MaskSinks(k=1), sk.AblateChannels(top=1), sk.ZeroAttention(((0, 1),))]
    traced = sk.trace(model, batch[0], SETTINGS, attention_mask=batch[1], interventions=changes)
    with sk.intervene(model, *changes):
        done = sk.decode(model, batch[0], SETTINGS, attention_mask=batch[1])
    assert torch.equal(traced[1].canvas, done.history[:, 1])
    assert [one["name"] for one in traced[0].interventions] == ["MaskSinks", "AblateChannels", "ZeroAttention"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sk.Steer([]), lambda: sk.Steer("nowhere.safetensors"), lambda: sk.Steer([float("nan")]),
        lambda: sk.Steer(ONES, at="end"), lambda: sk.Steer(ONES, steps=(2, 1)), lambda: sk.Steer(ONES, steps=(3,)),
        lambda: sk.Steer(ONES, strength="much"),
        sk.AblateChannels, lambda: sk.AblateChannels(channels=(1,), top=2), lambda: sk.AblateChannels(top=-1),
        lambda: sk.ZeroAttention((1, 2)), lambda: sk.ZeroAttention("all"), lambda: sk.ZeroAttention(((0, 0),), of="none"),
    ],
)  # fmt: skip
def test_senseless_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(InterventionError) as caught:
        wrong()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [sk.Steer([1.0, 2.0]), sk.AblateChannels(channels=(99,)), sk.ZeroAttention(((9, 0),)), sk.ZeroAttention(((0, 9),)),
     sk.Steer(ONES, layers=(9,)), sk.Steer(ONES, at="masked")],
    ids=repr,
)  # fmt: skip
def test_what_the_model_does_not_have_is_refused(model: sk.Model, batch: Any, change: Any) -> None:
    with pytest.raises(InterventionError), sk.intervene(model, change):
        model.logits(batch[0])
