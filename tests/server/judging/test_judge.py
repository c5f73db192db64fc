from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, update

from ammeter.verdicts.framework.finding import Finding
from ammeter_server.config.settings import Settings
from ammeter_server.db import Store
from ammeter_server.db.tables import incidents, outbox, runs, streams, totals
from ammeter_server.judging import cross_rank
from ammeter_server.judging.judge import AGEING_NS, CONTACT_NS, LEASE_NS, RECENT_NS, SWEEP_NS, Judge
from ammeter_server.judging.run_state import RESTART_NS
from ammeter_server.notify.channel import Channel
from tests.server.judged_runs import NOW, PAGE, SECOND, add_run, add_stream, conclude, rows

ENDED: dict[str, Any] = {"bye_reason": "closed", "bye": {"time": NOW}}

CHANNELS = tuple(Channel(name, lambda _: None) for name in ("json-1", "mail-2"))


@pytest.fixture
def store(either_store: Store) -> Store:
    return either_store


@pytest.fixture
def judge(store: Store) -> Judge:
    return Judge(store, Settings(public_url="http://collector.example"), CHANNELS)


def test_a_finding_becomes_an_incident_and_one_message_per_channel(store: Store, judge: Judge) -> None:
    run = add_run(store)
    conclude(store, run, add_stream(store, run, rank=2), PAGE)
    assert judge.judge_due(NOW)
    (incident,) = rows(store, incidents)
    assert (run, "scale-collapse", "open", 2) == (incident.run, incident.verdict, incident.state, incident.rank)
    told = rows(store, outbox)
    assert {"json-1", "mail-2"} == {row.channel for row in told}
    assert {"opened"} == {row.kind for row in told}
    assert f"http://collector.example/runs/{run}" in told[0].message["body"]


def test_nobody_hears_of_a_verdict_that_the_run_silences_and_of_another_they_do(store: Store, judge: Judge) -> None:
    run = add_run(store, tags={"silence": "scale-collapse,of-tomorrow"})
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    judge.judge_due(NOW)
    assert ([], []) == (rows(store, incidents), rows(store, outbox))
    conclude(store, run, stream, Finding("nonfinite-loss", "page", 10, 12, 15, "why", "do", "NaN"))
    assert judge.judge_due(NOW + SECOND)
    assert ["nonfinite-loss"] == [row.verdict for row in rows(store, incidents)]


def test_what_was_judged_is_not_due_until_something_moves_or_ages(store: Store, judge: Judge) -> None:
    run = add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    assert judge.judge_due(NOW)
    assert not judge.judge_due(NOW + SECOND)
    assert 1 == len(rows(store, incidents))
    with store.reading() as connection:
        assert NOW == connection.execute(select(runs.c.judged_at)).scalar_one()
    judge.judge_due(NOW + AGEING_NS + 1)
    with store.reading() as connection:
        assert NOW + AGEING_NS + 1 == connection.execute(select(runs.c.judged_at)).scalar_one()


def test_a_change_without_recent_data_is_judged_by_the_next_sweep(store: Store, judge: Judge) -> None:
    run = add_run(store)
    stream = add_stream(store, run, last_seen=NOW - CONTACT_NS - SECOND, **ENDED)
    judge.judge_due(NOW)
    conclude(store, run, stream, PAGE)
    assert not judge.judge_due(NOW + SECOND)
    assert judge.judge_due(NOW + SWEEP_NS)


def test_a_change_with_data_from_a_collector_whose_clock_is_late_is_judged_at_once(store: Store, judge: Judge) -> None:
    run = add_run(store)
    stream = add_stream(store, run, **ENDED)
    judge.judge_due(NOW + SECOND)
    conclude(store, run, stream, PAGE)
    assert judge.judge_due(NOW + CONTACT_NS // 2)


def test_after_the_clock_was_set_back_every_recent_run_is_considered(store: Store, judge: Judge) -> None:
    run = add_run(store)
    stream = add_stream(store, run, **ENDED)
    judge.judge_due(NOW + 3 * RECENT_NS)
    conclude(store, run, stream, PAGE)
    assert judge.judge_due(NOW)


def test_an_ended_run_whose_ranks_are_partly_read_is_read_on_in_each_round(
    store: Store, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(store)
    add_stream(store, run, last_seen=NOW - CONTACT_NS - SECOND, **ENDED)
    parts = [cross_rank.DUE_NOW, cross_rank.DUE_NOW, {}, {}]
    monkeypatch.setattr(cross_rank, "evaluate_run", lambda *_: cross_rank.RunEvaluation(values=parts.pop(0)))
    for part in range(4):
        judge.judge_due(NOW + part * SECOND)
    assert [{}] == parts


def test_a_run_that_another_judge_holds_is_left_to_it_until_its_lease_ends(store: Store, judge: Judge) -> None:
    run = add_run(store, claimed_by="another", claimed_until=NOW + LEASE_NS)
    conclude(store, run, add_stream(store, run), PAGE)
    assert not judge.judge(run, NOW)
    assert [] == rows(store, incidents)
    assert judge.judge(run, NOW + LEASE_NS + 1)
    assert 1 == len(rows(store, incidents))


def test_judges_that_meet_open_one_incident_and_write_one_message(store: Store) -> None:
    run = add_run(store)
    conclude(store, run, add_stream(store, run), PAGE)
    judges = [Judge(store, Settings(), CHANNELS[:1]) for _ in range(4)]
    meet = threading.Barrier(4)

    def work(judge: Judge) -> None:
        meet.wait()
        for _ in range(3):
            judge.judge(run, NOW)

    threads = [threading.Thread(target=work, args=(judge,)) for judge in judges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (1, 1) == (len(rows(store, incidents)), len(rows(store, outbox)))
    assert 1 == fleet(store)[("incidents", "", "scale-collapse")]


def fleet(store: Store) -> dict[tuple[str, str, str], int]:
    return {(row.name, row.outcome, row.verdict): row.value for row in rows(store, totals)}


def test_a_run_whose_judgement_fails_does_not_hold_up_the_others(store: Store, judge: Judge) -> None:
    broken, sound = add_run(store), add_run(store)
    conclude(store, broken, add_stream(store, broken), msgspec.structs.replace(PAGE, verdict="not-a-verdict"))
    conclude(store, sound, add_stream(store, sound), PAGE)
    judge.judge_due(NOW)
    assert {sound} == {row.run for row in rows(store, incidents)}


def test_what_runs_have_cost_never_decreases(store: Store) -> None:
    hour = 3600 * SECOND
    run = add_run(store, environment={"device": "NVIDIA H200"})
    stream = add_stream(store, run, started=NOW - 2 * hour, last_step_time=NOW - hour)
    totalled = []
    for price, until in ((4.0, NOW - hour), (1.0, NOW - hour), (1.0, NOW + 4 * hour), (1.0, NOW + 5 * hour)):
        with store.writing() as connection:
            connection.execute(update(streams).where(streams.c.id == stream).values(last_step_time=until))
        Judge(store, Settings(cost_per_hour=(("NVIDIA*", price),))).judge(run, NOW)
        totalled.append(fleet(store)["cost", "", ""] / 10**6)
    assert [4.0, 4.0, 6.0, 7.0] == totalled


def test_progress_is_folded_into_the_totals_once(store: Store, judge: Judge) -> None:
    run = add_run(store)
    stream = add_stream(store, run, counters={"applied": 90, "skipped": 10})
    add_stream(store, run, rank=1, counters={"applied": 89, "skipped": 10})
    judge.judge(run, NOW)
    judge.judge(run, NOW + 1)
    assert (90, 10) == (fleet(store)[("steps", "applied", "")], fleet(store)[("steps", "skipped", "")])
    with store.writing() as connection:
        connection.execute(
            update(streams).where(streams.c.id == stream).values(counters={"applied": 95, "skipped": 10})
        )
    judge.judge(run, NOW + 2)
    assert (95, 10) == (fleet(store)[("steps", "applied", "")], fleet(store)[("steps", "skipped", "")])


@pytest.mark.parametrize(
    ("reason", "state", "outcome"),
    [
        ("closed", "ended", "ended"),
        ("exit", "ended", "ended"),
        ("exception", "ended", "failed"),
        ("lost", "lost", "lost"),
    ],
)
def test_a_run_ends_as_its_last_goodbye_says_and_counts_once(
    store: Store, judge: Judge, reason: str, state: str, outcome: str
) -> None:
    run = add_run(store)
    add_stream(store, run, bye_reason=reason, bye={"reason": reason, "time": 777, "step": 5})
    judge.judge(run, NOW)
    judge.judge(run, NOW + 1)
    (row,) = rows(store, runs)
    assert (state, 777) == (row.state, row.ended)
    assert 1 == fleet(store)[("runs", outcome, "")]


def test_a_resumed_run_runs_again_and_its_loss_is_over(store: Store, judge: Judge) -> None:
    run = add_run(store)
    first = add_stream(store, run, bye_reason="lost", bye={"reason": "lost", "time": 777})
    conclude(store, run, first, msgspec.structs.replace(PAGE, verdict="run-lost"))
    judge.judge(run, NOW)
    assert ("lost", "open") == (rows(store, runs)[0].state, rows(store, incidents)[0].state)
    add_stream(store, run, started=2)
    judge.judge(run, NOW + SECOND)
    (row,), (incident,) = rows(store, runs), rows(store, incidents)
    assert ("running", None) == (row.state, row.ended)
    assert ("closed", "recovered") == (incident.state, incident.closed_reason)


def lose(store: Store, run: str) -> str:
    """A stream of the run whose process has just died."""
    stream = add_stream(store, run, bye_reason="lost", bye={"reason": "lost", "time": 777})
    conclude(store, run, stream, msgspec.structs.replace(PAGE, verdict="run-lost"))
    return stream


def test_nobody_is_woken_for_a_process_that_its_launcher_starts_again(store: Store, judge: Judge) -> None:
    run = add_run(store, environment={"max_restarts": "1"})
    lose(store, run)
    judge.judge(run, NOW + SECOND)
    assert ("running", []) == (rows(store, runs)[0].state, rows(store, incidents))
    add_stream(store, run, started=2, last_seen=NOW + 60 * SECOND)
    judge.judge(run, NOW + 60 * SECOND)
    assert ("running", []) == (rows(store, runs)[0].state, rows(store, incidents))


def test_a_process_that_does_not_come_again_in_time_is_lost(store: Store, judge: Judge) -> None:
    run = add_run(store, environment={"max_restarts": "1"})
    lose(store, run)
    judge.judge(run, NOW + SECOND)
    judge.judge_due(NOW + RESTART_NS + AGEING_NS)
    assert ("lost", ["open"]) == (rows(store, runs)[0].state, [row.state for row in rows(store, incidents)])


def test_a_process_that_was_held_to_be_lost_stays_so_until_it_is_back(store: Store, judge: Judge) -> None:
    run = add_run(store, environment={"max_restarts": "1"})
    stream = add_stream(store, run)
    conclude(store, run, stream, msgspec.structs.replace(PAGE, verdict="run-lost"))
    judge.judge(run, NOW)
    with store.writing() as connection:
        connection.execute(update(streams).values(bye_reason="lost", bye={"reason": "lost", "time": 777}))
    judge.judge(run, NOW + SECOND)
    assert ["open"] == [row.state for row in rows(store, incidents)]


def test_a_ticket_that_becomes_a_page_is_counted_as_a_page(store: Store, judge: Judge) -> None:
    run = add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, msgspec.structs.replace(PAGE, severity="ticket"))
    judge.judge(run, NOW)
    assert {"ticket": 1} == counted(store)
    for later in (1, 2):
        conclude(store, run, stream, PAGE)
        judge.judge(run, NOW + later * SECOND)
        assert {"ticket": 1, "page": 1} == counted(store)


def counted(store: Store) -> dict[str, int]:
    """Incidents of the fleet by severity."""
    with store.reading() as connection:
        query = select(totals.c.severity, totals.c.value).where(totals.c.name == "incidents")
        return {row.severity: row.value for row in connection.execute(query)}
