"""What users bring: conditions in words, hooks, modules to wrap, modes, protocols, packages with entry points.

Each leads to a result or to one sentence, and leaves nothing in the model.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from changed_values import NUMBERS, VALUES, changed
from contract import answered, fuzz, told
from hypothesis import given
from hypothesis import strategies as st

import sinkscope as sk
from golden_sets import HERE, golden
from made_models import make_causal, save_tokenizer
from sinkscope import registry
from sinkscope.conditions import Condition
from sinkscope.errors import PluginError, SinkscopeError
from sinkscope.interventions import INTERVENTIONS
from sinkscope.study.schema import Study
from sinkscope.tasks.protocol import FOLDER, read_protocol, settings_for

IDS = torch.tensor([[5, 9, 2, 7]])
SETTINGS = sk.Decode.llada(length=4, steps=2)
FITTING: dict[str, list[Any]] = {  # values that are right for some setting of that name, so that combinations are reached
    "k": [0, 1, 3, 500], "positions": [[0], [0, -1], [99], []], "since": ["first", "second"], "rank": ["clean", "as_run"],
    "rows": ["all", "last"], "match": ["count", "mass"], "kinds": ["structural", ["mask"], []], "per": ["head", "layer", "model"],
    "above": [{"rule": "head_share", "epsilon": 0.1}, {"rule": "zscore", "k": 10**30}], "to": [0.0, 0.5, 1], "by": [0, 0.5, 1.0],
    "of": ["random", "sinks", "vector", "channels", "heads"], "layers": [[0], [0, 1], [99]], "vector": [[1.0] * 64, [0], [1e300]],
    "strength": [0, 2, -1e6], "at": ["all", "masked", "sinks", "prompt"], "channels": [[0, 1], [10**6]], "top": [1, 5, 10**6],
    "heads": [[[0, 0]], [[9, 9]], []], "steps": [[0, 1], [0.25, 0.75], [None, 1], [1, None], [3, 1], [0.5, 1]],
    "start": [0, 0.25], "stop": [0.5, 1], "radius": [0, 1, 5], "weight": [0, 0.5], "temperature": [0.5, 2, 0],
    "keep": [0.5, 0, 1], "persist": [True], "aligned": [True], "penalty": [1.0], "bonus": [1.0], "count": [0, 1],
}  # fmt: skip


def sentence(found: Any) -> bool:
    """Whether it was refused; then in one line of a length that can be read."""
    if isinstance(found, SinkscopeError):
        assert len(str(found).splitlines()) == 1 and len(str(found)) < 1200
        return True
    return False


def applied(condition: Condition) -> None:
    """A condition that was taken is built, put into a model and taken out again."""
    model = golden("llada").model
    before = _hooks(model.module)
    words = answered(lambda: condition.decode)
    change = answered(lambda: condition.seeded(0))
    if sentence(words) or sentence(change) or change is None or words:
        return

    def run() -> torch.Tensor:
        with sk.intervene(model, change):
            return sk.decode(model, IDS, SETTINGS).tokens

    found = answered(run)
    assert sentence(found) or found.shape == (1, 8)
    assert _hooks(model.module) == before


def _hooks(module: torch.nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def read(entry: dict[str, Any]) -> list[Condition]:
    plain = {"name": "x", "models": ["tiny-llada"], "tasks": [{"name": "recall", "problems": 1}]}
    return [one for one in Study.from_dict({**plain, "conditions": ["none", entry]}).conditions if one.name != "none"]


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(INTERVENTIONS)))
    known = sorted(INTERVENTIONS[name].hints())
    chosen = draw(st.lists(st.sampled_from([*known, *known, "lenght"]), max_size=3, unique=True))
    needed = ["k"] if "k" in known and draw(st.booleans()) else []
    return {"name": name, **{
        one: draw(st.one_of(st.sampled_from(FITTING[one]), VALUES) if one in FITTING and draw(st.integers(0, 3)) else VALUES)
        for one in dict.fromkeys([*chosen, *needed])
    }}  # fmt: skip


@fuzz
@given(entry=entries())
def test_a_condition_of_a_study_is_run_or_refused(entry: dict[str, Any]) -> None:
    found = answered(lambda: read(entry))
    if not sentence(found):
        for condition in found[:2]:
            assert condition.label and condition.key
            applied(condition)


@fuzz
@given(
    name=st.one_of(st.sampled_from(sorted(INTERVENTIONS)), st.text(max_size=6)),
    rest=st.lists(
        st.tuples(
            st.one_of(st.sampled_from(sorted(FITTING)), st.text(max_size=4)),
            st.one_of(
                st.sampled_from([str(one) for values in FITTING.values() for one in values]),
                st.sampled_from(["[", "{a", "'", "&a [*a, *a]", "!!python/object:os.system x", "1" * 5000, "10" * 40, "\x1b", ""]),
                NUMBERS.map(str), st.text(max_size=6),
            ),
        ),
        max_size=3,
    ),
)  # fmt: skip
def test_a_condition_in_words(name: str, rest: list[tuple[str, str]]) -> None:
    found = answered(lambda: Condition.parse(f"{name}:" + ",".join(f"{one}={value}" for one, value in rest)))
    if not sentence(found):
        applied(found)


PLACES = st.one_of(
    st.sampled_from(["resid_post", "resid_pre", "attn_out", "mlp_out", "q", "k", "v", "z", "layers.0.z", "layers.9.q",
                     "layers.-1.q", "layers.0", "", ".", "layers..q", "q.q", "\x1b",
                     "layers.0.resid_post.x", "layers.99999999999999999999.q"]),
    st.text(max_size=8), VALUES,
)  # fmt: skip
MADE: list[Any] = [
    lambda x: None, lambda x: x, lambda x: x * 0, lambda x: x[:, :1], lambda x: x.double(), lambda x: x.half(),
    lambda x: x.tolist(), lambda x: "x", lambda x: x * float("nan"), lambda x: x.bool(), lambda x: (x,),
    lambda x: x.to("meta"), lambda x: 3,
]  # fmt: skip


@fuzz
@given(
    where=st.one_of(PLACES, st.lists(PLACES, max_size=3)), made=st.sampled_from(MADE), odd=st.one_of(st.none(), VALUES)
)
def test_a_hook_acts_or_is_refused(where: Any, made: Any, odd: Any) -> None:
    model = golden("llada").model
    before = _hooks(model.module)
    function = (lambda activation, context: made(activation)) if odd is None else odd

    def run() -> torch.Tensor:
        with sk.hook(model, where, function):
            return sk.decode(model, IDS, SETTINGS).tokens

    found = answered(run)
    assert sentence(found) or found.shape == (1, 8)
    assert _hooks(model.module) == before


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> sk.Model:
    return sk.load(make_causal(save_tokenizer(tmp_path_factory.mktemp("wrap") / "model", eos_token="</s>")))


@fuzz
@given(
    given_=st.one_of(st.just("module"), VALUES),
    family=st.one_of(
        st.none(), st.sampled_from(["llada", "dream", "llama", "sdar", "nemotron_labs_diffusion", "wedlm", "rnd1"]), VALUES
    ),
    mask=st.one_of(st.none(), st.just(3), VALUES),
    tokenizer=st.one_of(st.none(), st.just("own"), VALUES),
)  # fmt: skip
def test_a_module_is_wrapped_or_refused(given_: Any, family: Any, mask: Any, tokenizer: Any, causal: sk.Model) -> None:
    module = causal.module if given_ == "module" else given_
    own = causal.tokenizer if tokenizer == "own" else tokenizer
    found = answered(lambda: sk.wrap(module, own, family=family, mask_id=mask))
    try:
        if not sentence(found):
            assert found.logits(torch.tensor([[1, 2]])).isfinite().all()
    finally:
        answered(lambda: sk.wrap(causal.module, causal.tokenizer))  # causal again


@fuzz
@given(mode=st.one_of(st.sampled_from(["diffusion", "autoregressive", "self_speculation"]), VALUES), words=st.dictionaries(
    st.sampled_from(["steps", "block", "threshold", "length", "mode", "commit", "stop", "causal_context", "cache"]),
    st.one_of(st.sampled_from([1, 4, 0.9, "threshold", "eos", "exact", True]), VALUES), max_size=3))  # fmt: skip
def test_a_mode_decodes_or_is_refused(mode: Any, words: dict[str, Any]) -> None:
    model = answered(lambda: nemotron().in_mode(mode))
    if not sentence(model):
        found = answered(lambda: sk.trace(model, IDS, **{"length": 4, **words}))
        assert sentence(found) or found.steps >= 1


def nemotron() -> sk.Model:
    from golden_sets import newest

    return newest("nemotron_labs_diffusion").model


@fuzz
@given(entry=st.one_of(
    st.fixed_dictionaries({}, optional={
        "name": st.one_of(st.just("tiny-nemotron"), VALUES),
        "mode": st.one_of(st.sampled_from(["diffusion", "autoregressive"]), VALUES), "x": VALUES,
    }), VALUES))  # fmt: skip
def test_a_mode_of_a_study_is_read_or_refused(entry: Any) -> None:
    plain = {"name": "x", "tasks": [{"name": "recall", "problems": 1}], "conditions": ["none"]}
    found = answered(lambda: Study.from_dict({**plain, "models": [entry]}))
    assert sentence(found) or Study.from_dict(found.to_dict()) == found


PROTOCOLS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}


@fuzz
@given(data=st.data(), name=st.sampled_from(sorted(PROTOCOLS)), task=st.sampled_from(["gsm8k", "humaneval"]))
def test_a_changed_protocol_is_read_or_refused(data: st.DataObject, name: str, task: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        yaml.safe_dump(changed(data, PROTOCOLS[name]), allow_unicode=True), encoding="utf-8", errors="replace"
    )
    read_protocol.cache_clear()
    found = answered(lambda: read_protocol(str(file)))
    if not sentence(found):
        sentence(answered(lambda: settings_for(golden("llada").model, task, protocol=found)))


class Package(EntryPoint):
    """An entry point whose module fails when it is imported."""

    def load(self) -> Any:
        raise ERRORS[int(self.value)]


ERRORS = [
    ImportError("no module"), ValueError("a\nb\x1b[31m"), RuntimeError(""), SystemExit(3), SystemExit("bye"), OSError(2, "gone"),
    KeyError("k"), RecursionError("deep"), AttributeError("x" * 5000), SyntaxError("bad"), MemoryError(), NotImplementedError(),
    sk.SinkscopeError("ours"), StopIteration(), AssertionError("\u202e"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
]  # fmt: skip


def install(monkeypatch: pytest.MonkeyPatch, *points: Package) -> None:
    monkeypatch.setattr(registry, "installed_plugins", lambda: points)
    monkeypatch.setattr(registry, "_loaded", [])
    monkeypatch.setattr(registry, "_failures", [])


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_a_package_that_fails_when_imported_is_named(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points = (Package("mine", str(number), registry.GROUP),)
    install(monkeypatch, *points)
    for _ in range(2):  # the second time as the first
        found = answered(registry.load_plugins)
        assert isinstance(found, PluginError) and "mine" in str(found) and sentence(found)


def test_commands_say_which_package_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Package("mine", "3", registry.GROUP))
    assert told("trace", str(HERE / "llada"), "5 9", "--length", "4", "-o", "/dev/null/x").code == 2
    assert "mine" in told("plan", "quick").err
