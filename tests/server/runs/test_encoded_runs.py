"""The cache holds the newest JSON of each run, as long as the run is unchanged."""

from __future__ import annotations

import pytest

from ammeter_server.runs import encoded_runs
from ammeter_server.runs.encoded_runs import EncodedRuns


def test_json_is_returned_for_the_marks_that_it_was_made_from_and_no_others() -> None:
    cache = EncodedRuns()
    assert cache.get("a", b"") is None
    cache.put("a", b"1", b"{}")
    assert b"{}" == cache.get("a", b"1")
    assert cache.get("a", b"2") is None
    assert cache.get("b", b"1") is None


def test_a_changed_run_takes_the_place_of_its_own_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_runs, "MAX_BYTES", 20)
    cache = EncodedRuns()
    cache.put("quiet", b"1", b"x" * 9)
    for number in range(9):
        cache.put("busy", b"%d" % number, b"y" * 9)
    assert b"x" * 9 == cache.get("quiet", b"1")
    assert b"y" * 9 == cache.get("busy", b"8")
    cache.put("large", b"1", b"z" * 20)
    assert cache.get("large", b"1") is None
    cache.put("third", b"1", b"z" * 9)
    assert cache.get("quiet", b"1") is None or cache.get("busy", b"8") is None
