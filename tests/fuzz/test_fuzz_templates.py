"""Chat templates: programs from elsewhere, put together from pieces that fail, loop, grow or steer a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import fuzz, told
from hypothesis import given
from hypothesis import strategies as st

from made_models import make_causal, save_tokenizer

PIECES = st.one_of(
    st.sampled_from(
        ["{{ messages[0]['content'] }}", "{{ bos_token }}", "{% for m in messages %}", "{% endfor %}", "{{ m.role }}",
         "{{ raise_exception('\x1b[2Jno') }}", "{{ 1 // 0 }}", "{{ a.b.c }}", "{% if true %}", "{% endif %}", "{% macro f() %}",
         "{{ f() }}", "{% endmacro %}", "{{ messages | tojson }}", "{{ strftime_now('%Y') }}", "{{ [1] * 10**9 }}",
         "{{ 'x' * 10**10 }}", "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{ '%99999999d' % 1 }}",
         "{{ 'a' | center(10**8) }}", "{% set ns = namespace(a='x') %}", "{% set ns.a = ns.a ~ ns.a %}", "{% include 'x' %}",
         "{% extends '/etc/passwd' %}", "{% import 'os' as os %}", "{{ 10 ** 4000 }}", "{#", "{%", "}}", "\x1b[31m", "\u202e",
         "{{ range(10**9) }}", "{{ lipsum(9) }}", "{% for i in range(90000) %}", "{{ dict(a=1) }}", "\ud83d"]
    ),
    st.text(max_size=8),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("template")
    return make_causal(save_tokenizer(made, eos_token="</s>", bos_token="<s>"), layers=1)


@fuzz
@given(pieces=st.lists(PIECES, max_size=6))
def test_a_template_writes_a_prompt_or_is_refused(pieces: list[str], folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes("".join(pieces).encode("utf-8", "surrogatepass"))
    told("generate", str(folder), "--length", "1", "--", "Tom has two")
