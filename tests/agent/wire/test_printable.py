from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ammeter.wire.printable import escaped, line, name, sentence, shortened, storable


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


NASTY = [
    "@everyone",
    "@here",
    "@channel",
    "a @all b",
    "<@&123456>",
    "<@U0123>",
    "<!channel>",
    "<!here|here>",
    "< !channel>",
    "<!subteam^S1|x>",
    "<#C1>",
    "<https://evil.example|Page>",
    "<at>everyone</at>",
    "<img src=x onerror=alert(1)>",
    "[Page](https://evil.example)",
    "[Page]  (https://evil.example)",
    "[a][b]",
    "x](https://evil.example",
    "https://evil.example/login",
    "` and the rest is code",
    "```",
    "a\n# Title\n> quoted",
    "a\r\nPage: https://evil.example",
    "\u202egnp.exe",
    "\u2066x",
    "\x1b[2J\x07\x00",
    "\uff20everyone",
]
ACTIVE = re.compile(r"[@\uff20]\w|<[A-Za-z/!@#:&]|<\s*!\w+>|\]\s*[(\[]|[\n\r\x00-\x1f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("value", NASTY)
def test_a_name_does_nothing_where_people_read_it(value: str) -> None:
    for said in (name(value), name(f"layers.0.{value}.weight"), sentence(f"The gradient of {value} became NaN.")):
        assert not ACTIVE.search(said), said
        assert said.count("`") % 2 == 0
        assert "```" not in said
    assert "://" not in name(value)
    assert "`" not in name(value)


@pytest.mark.parametrize(
    "value", ["layers.0.self_attn.q_proj.weight", "nightly #5", "lr=3e-4 < 1", "größer", "日本語　x", "a: b"]
)
def test_a_usual_name_stays_as_it_is(value: str) -> None:
    assert " ".join(value.split()) == name(value)


def test_what_a_fix_tells_to_write_is_copied_as_it_stands() -> None:
    fix = "Put @torch.amp.custom_fwd(device_type='cuda') on it; see `ammeter doctor` and https://pytorch.org/x. 1 < 2"
    assert fix == sentence(fix)


@given(st.text(st.sampled_from("@<>!`[]()\n\u202e\u200c a:/&|#x"), max_size=30))
def test_no_mixture_of_marks_does_anything(value: str) -> None:
    assert not ACTIVE.search(name(value))
    assert name(value) == name(name(value))


def test_a_long_text_is_truncated_to_the_limit_with_an_ellipsis() -> None:
    assert "abcd" == shortened("abcd", 4)
    assert "abc…" == shortened("abcde", 4)


@given(st.text(st.characters(max_codepoint=sys.maxunicode), max_size=40))
def test_storable_text_is_utf_8_without_nul_and_otherwise_unchanged(text: str) -> None:
    stored = storable(text)
    assert "\x00" not in stored
    assert stored == stored.encode().decode() == storable(stored)
    if stored != text:
        assert "\x00" in text or any(unicodedata.category(sign) == "Cs" for sign in text)


def test_escaped_text_is_one_line_that_shows_each_control_character() -> None:
    assert "a\\n\\x1b[31m größer" == escaped("a\n\x1b[31m größer")
