from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ammeter_server.plain import line


@pytest.mark.parametrize("name", ["nightly", "größer · 2¹⁶", "日本語", "نص", "שלום", "👩‍🔬 run", "a\u200cb", ""])
def test_a_name_in_any_script_stays_as_it_is(name: str) -> None:
    assert name == line(name)


@pytest.mark.parametrize(
    "sign", ["\n", "\r", "\t", "\x00", "\x1b", "\x85", "\u2028", "\u202e", "\u2066", "\u200f", "\ufeff"]
)
def test_what_would_mislead_a_reader_is_shown_as_such(sign: str) -> None:
    assert "a\ufffdb" == line(f"a{sign}b")


@given(st.text(st.characters(max_codepoint=sys.maxunicode), max_size=40))
def test_whatever_a_name_is_it_is_one_line_that_a_database_takes(name: str) -> None:
    shown = line(name)
    assert len(shown.splitlines()) <= 1
    assert not {unicodedata.category(sign) for sign in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert shown == shown.encode().decode()
    assert shown == line(shown)
