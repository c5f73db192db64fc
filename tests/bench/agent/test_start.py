"""The benchmark of the start runs all its programs and compares those of one turn."""

from __future__ import annotations

import pytest

from bench.agent.start import __main__ as start
from bench.agent.start.__main__ import BARE, LAUNCHED, SENT, WATCHED


@pytest.mark.long
def test_each_program_notes_its_parts() -> None:
    found = start.measure(1)
    assert {BARE, WATCHED, SENT, LAUNCHED} == set(found)
    for kind in (WATCHED, SENT):
        (parts,) = found[kind]
        assert parts["import"] > 0
        assert parts["watch"] > 0
    ((bare,), (launched,)) = found[BARE], found[LAUNCHED]
    assert (bare["watch"], launched["watch"]) == (0, 0)
    assert launched["program"] > 0


def test_parts_are_compared_with_the_bare_program_of_the_same_turn() -> None:
    parts = dict.fromkeys((*start.PARTS, "program", "cpu"), 0.5)
    more = {**parts, "watch": 0.6, "close": 0.52}
    found = {BARE: [parts] * 2, WATCHED: [more] * 2, SENT: [more, parts], LAUNCHED: [parts] * 2}
    assert start.added(found, WATCHED, "watch") == pytest.approx([100, 100])
    assert start.added(found, SENT, "close") == pytest.approx([20, 0])
    lines = start.report(found, load=0.0)
    assert "120 ms: met" in lines[-1]
    (row,) = (line for line in lines if line.startswith(f"| {WATCHED} "))
    assert "| 120 (120 to 120) | 0 (0 to 0) |" in row
