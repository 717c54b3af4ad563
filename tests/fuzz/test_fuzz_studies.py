"""Study files: every field of every shipped study changed, and text that is hardly YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from contract import answered, fuzz
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import SinkscopeError
from sinkscope.study.schema import STUDIES, Study, shipped

ORIGINAL = {name: (STUDIES / f"{name}.yaml").read_text(encoding="utf-8") for name in shipped()}
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.floats(), st.text(max_size=8),
    st.sampled_from([10**9, 2**63, 10**30, -(10**9), "", "\x1b[31m", "x" * 5000, "../up", "none", "mask_sinks", "cpu"]),
)  # fmt: skip
VALUES = st.one_of(
    PLAIN, st.lists(PLAIN, max_size=3), st.dictionaries(st.sampled_from(["name", "k", "for", "x"]), PLAIN, max_size=3),
    st.just([[[[]]]] * 3), st.just(list(range(5000))),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a file stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def check(file: Path) -> None:
    found = answered(lambda: Study.load(file))
    if isinstance(found, SinkscopeError):
        assert len(str(found).splitlines()) == 1 and "\x1b" not in str(found)
    else:
        assert Study.from_dict(found.to_dict()) == found


@fuzz
@given(data=st.data(), name=st.sampled_from(sorted(ORIGINAL)))
def test_a_changed_study_is_read_or_refused(data: st.DataObject, name: str, tmp_path: Path) -> None:
    values = yaml.safe_load(ORIGINAL[name])
    *way, last = data.draw(st.sampled_from(places(values)[1:]))
    inside = values
    for key in way:
        inside = inside[key]
    if data.draw(st.integers(0, 4)):
        inside[last] = data.draw(VALUES)
    else:
        del inside[last]
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    check(file)


@fuzz
@given(
    name=st.sampled_from(sorted(ORIGINAL)),
    place=st.integers(0, 3000),
    junk=st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"&a [*a, *a]", b"{" * 400, b"- " * 300, b"!!python/object:os.system ", b"\t", b"? [a]: b"]),
    ),
)
def test_damaged_text_is_read_or_refused(name: str, place: int, junk: bytes, tmp_path: Path) -> None:
    data = ORIGINAL[name].encode()
    file = tmp_path / "study.yaml"
    file.write_bytes(data[:place] + junk + data[place:])
    check(file)
