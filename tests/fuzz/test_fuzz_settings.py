"""Decode settings: every constructor, every field, values of every kind; settings that can be written and read, or one sentence."""

from __future__ import annotations

from typing import Any

from changed_values import VALUES
from contract import answered, fuzz
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.decoding import SAMPLERS, Decode
from sinkscope.decoding.settings import setting_names
from sinkscope.errors import DecodeError, SinkscopeError

NAMES = sorted({*setting_names(), "lenght"})
PLAUSIBLE = st.one_of(
    st.sampled_from([1, 2, 4, 8, 16, 0.5, 0.9, True, (1,), "never", "eos", "exact", "dual", "margin", "p2"])
)


def check(found: Any) -> None:
    if isinstance(found, SinkscopeError):
        assert isinstance(found, DecodeError) and len(str(found).splitlines()) == 1 and len(str(found)) < 1200
    else:
        assert Decode.from_dict(found.to_dict()) == found and found.most_steps >= 1


@fuzz
@given(
    sampler=st.sampled_from(SAMPLERS.names()),
    words=st.dictionaries(st.sampled_from(NAMES), st.one_of(VALUES, PLAUSIBLE), max_size=3),
    length=st.one_of(st.just(8), st.integers(-1, 40), VALUES),
)
def test_samplers(sampler: str, words: dict[str, Any], length: Any) -> None:
    words = {name: value for name, value in words.items() if name != "length"}
    check(answered(lambda: getattr(Decode, sampler)(length, **words)))


@fuzz
@given(values=st.one_of(VALUES, st.dictionaries(st.sampled_from(NAMES), st.one_of(VALUES, PLAUSIBLE), max_size=4)))
def test_settings_of_a_file(values: Any) -> None:
    given_ = {"family": "llada", "length": 8, "steps": 8, **values} if isinstance(values, dict) else values
    check(answered(lambda: Decode.from_dict(given_)))
