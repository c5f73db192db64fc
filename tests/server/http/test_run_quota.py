from __future__ import annotations

from pathlib import Path

import pytest

from ammeter.wire.frames import Lost
from ammeter_server.http.limits import run_quota
from ammeter_server.http.limits.run_quota import COUNT_INTERVAL_NS, Quota
from ammeter_server.http.problems import Problem
from tests.server.feeding import wait_until
from tests.server.ingest.senders import Sender, opened


def refused(of: Quota, project: str) -> str | None:
    try:
        of.check(project)
    except Problem as problem:
        return str(problem.members["limit"])
    return None


def test_a_project_that_is_full_takes_no_more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_quota, "MAX_RUNS", 3)
    of = Quota()
    of.count({"full": 3, "other": 2}, 1)
    assert ["runs", None, None] == [refused(of, name) for name in ("full", "other", "new")]


def test_one_project_too_many_is_refused_and_those_there_are_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_quota, "MAX_PROJECTS", 2)
    of = Quota()
    of.count({"one": 1, "two": 1}, 1)
    assert [None, None, "projects"] == [refused(of, name) for name in ("one", "two", "three")]


def test_what_is_let_in_between_two_counts_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_quota, "MAX_RUNS", 2)
    monkeypatch.setattr(run_quota, "MAX_PROJECTS", 3)
    of = Quota()
    assert [None, None, "runs"] == [refused(of, "one") for _ in range(3)]
    assert [None, None, "projects"] == [refused(of, name) for name in ("two", "three", "four")]
    for now in (1, 2):  # the first may have begun before the runs were stored
        of.count({"one": 1}, now)
    assert [None, None] == [refused(of, name) for name in ("one", "four")]


def test_a_project_admitted_while_the_runs_were_counted_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_quota, "MAX_PROJECTS", 1)
    of = Quota()
    of.check("one")
    of.count({}, 1)  # read before the run was stored
    assert refused(of, "two") == "projects"
    of.count({}, 2)  # the run is not stored, or deleted
    assert refused(of, "two") is None


def test_a_hello_that_comes_late_brings_no_project_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_quota, "MAX_PROJECTS", 1)
    with opened(tmp_path) as place:
        sender = Sender(place.client, place.store)
        assert 200 == sender.post([], 0, 10, gaps=[Lost("cap", 1, 0, 0, 10)]).status_code
        late = sender.post([sender.hello(project="another")], 10, 20)
        assert (403, "projects") == (late.status_code, late.json().get("limit")), late.text
        assert 200 == sender.post([sender.hello(project="default")], 10, 20).status_code


def test_it_is_counted_now_and_then() -> None:
    of = Quota()
    assert of.is_due(COUNT_INTERVAL_NS)
    of.count({}, COUNT_INTERVAL_NS)
    assert [False, True] == [of.is_due(2 * COUNT_INTERVAL_NS - 1), of.is_due(2 * COUNT_INTERVAL_NS)]


def test_a_full_collector_refuses_runs_by_the_limits_name_and_takes_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_quota, "MAX_PROJECTS", 2)
    monkeypatch.setattr(run_quota, "COUNT_INTERVAL_NS", 0)
    with opened(tmp_path) as place:
        first, second, third, again = (Sender(place.client, place.store) for _ in range(4))
        for name, sender in (("one", first), ("two", second)):
            assert 200 == sender.post([sender.hello(project=name)], 0, 10).status_code

        def answer() -> str | None:
            other = Sender(place.client, place.store)
            refusal: dict[str, str] = other.post([other.hello(project=f"new {other.run}")], 0, 10).json()
            return refusal.get("limit")

        wait_until(lambda: answer() == "projects")
        again.run = first.run
        assert 200 == again.post([again.hello(project="one")], 0, 10).status_code
        assert 200 == third.post([third.hello(project="two")], 0, 10).status_code
