"""Which rows of the outbox a run's incidents come to, on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ammeter.verdicts.framework.finding import Finding
from ammeter_server.config.notify_routes import Filter
from ammeter_server.config.settings import Settings
from ammeter_server.db import Store
from ammeter_server.db.queries import outbox as query
from ammeter_server.db.tables import incidents, outbox
from ammeter_server.incidents.lifecycle import COOLDOWN_NS
from ammeter_server.judging.judge import Judge
from ammeter_server.judging.manual_actions import ManualActions
from ammeter_server.notify.channel import Channel
from ammeter_server.notify.delivery import ALERT_REPEAT_NS, MAX_ALERT_PAUSE_SECONDS, RESOLVED_REPEAT_NS, outcome
from ammeter_server.notify.outbox_writer import REOPEN_QUIET_NS
from tests.server.judged_runs import NOW, PAGE, SECOND, add_run, add_stream, conclude, rows

HOLDS = Channel("alertmanager-a:9093", lambda _: None, most=500, stateful=True)
HEARS = Channel("chat", lambda _: None)
TICKET = Finding("overflow-storm", "ticket", 5, 6, 9, "why", "do", "A storm")


@pytest.fixture
def store(either_store: Store) -> Store:
    return either_store


def judging(store: Store, *channels: Channel) -> Judge:
    return Judge(store, Settings(public_url="http://collector.example"), channels)


def told(store: Store, channel: Channel) -> list[Any]:
    return sorted((row for row in rows(store, outbox) if row.channel == channel.name), key=lambda row: row.created)


def kinds(found: Sequence[Any]) -> list[tuple[str, str]]:
    return [(row.kind, row.state) for row in found]


def send(store: Store, now: int, error: str | None = None) -> list[Any]:
    """Delivers what is due, as an outbox does; returns the rows."""
    with store.writing() as connection:
        due = [row for row in query.due(connection, now) if query.claim(connection, row, now, now + SECOND)]
        for row in due:
            holds = row.channel == HOLDS.name
            query.settle(connection, row, outcome(row, error, now, stateful=holds))
    return due


def again(finding: Finding, times: int, **changes: Any) -> Finding:
    return msgspec.structs.replace(finding, times=times, **changes)


def test_an_alert_is_told_again_until_it_is_over_and_for_a_while_after(store: Store) -> None:
    judge, run = judging(store, HOLDS), add_run(store, tags={"owner": "anna"})
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW)
    (alert,) = send(store, NOW)
    assert {
        "alertname": "AmmeterScaleCollapse",
        "severity": "page",
        "project": "speech",
        "run": run,
        "verdict": "scale-collapse",
        "class": "ml",
        "owner": "anna",
    } == alert.message["alert"]["labels"]
    assert "http://collector.example/runbooks/scale-collapse" == alert.message["alert"]["annotations"]["runbook_url"]
    assert [] == send(store, NOW + ALERT_REPEAT_NS - 1)
    assert ["opened"] == [row.kind for row in send(store, NOW + ALERT_REPEAT_NS)]
    conclude(store, run, stream, again(PAGE, 1, active=False))
    over = NOW + 2 * ALERT_REPEAT_NS
    judge.judge(run, over)
    assert [("resolved", over)] == [(row.kind, row.message["over"]) for row in send(store, over)]
    assert 1 == len(send(store, over + ALERT_REPEAT_NS))
    assert 1 == len(send(store, over + RESOLVED_REPEAT_NS))
    assert [] == send(store, over + 2 * RESOLVED_REPEAT_NS)
    assert [("resolved", "sent")] == kinds(told(store, HOLDS))


def test_what_an_alert_says_changes_while_it_fires_and_what_it_is_does_not(store: Store) -> None:
    judge, run = judging(store, HOLDS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW)
    (before,) = send(store, NOW)
    conclude(store, run, stream, again(PAGE, 1, cause="because of blocks.2"))
    judge.judge(run, NOW + SECOND)
    (after,) = told(store, HOLDS)
    assert before.message["alert"]["labels"] == after.message["alert"]["labels"]
    assert "Cause: because of blocks.2" in after.message["alert"]["annotations"]["description"]
    assert NOW + ALERT_REPEAT_NS == after.due


def test_a_ticket_that_becomes_a_page_is_another_alert_and_the_ticket_is_over(store: Store) -> None:
    judge, run = judging(store, HOLDS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, again(PAGE, 1, severity="ticket"))
    judge.judge(run, NOW)
    send(store, NOW)
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW + SECOND)
    both = {row.message["alert"]["labels"]["severity"]: row.kind for row in send(store, NOW + SECOND)}
    assert {"ticket": "resolved", "page": "opened"} == both


def test_a_cause_that_takes_an_incident_over_goes_on_with_its_alert_and_pages_nobody_again(store: Store) -> None:
    judge, run = judging(store, HOLDS, HEARS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW)
    send(store, NOW)
    cause = Finding("nonfinite-loss", "page", 9, 12, 15, "a poisoned batch", "do", "NaN")
    conclude(store, run, stream, cause)
    judge.judge(run, NOW + SECOND)
    (alert,) = told(store, HOLDS)
    assert f"{run}.nonfinite-loss.1" == alert.incident
    assert "AmmeterScaleCollapse" == alert.message["alert"]["labels"]["alertname"]
    assert "Cause: a poisoned batch" in alert.message["alert"]["annotations"]["description"]
    assert [("opened", "sent")] == kinds(told(store, HEARS))
    conclude(store, run, stream, again(PAGE, 1, active=False))
    conclude(store, run, stream, again(cause, 1, active=False))
    judge.judge(run, NOW + 2 * SECOND)
    assert [("resolved", "pending")] == kinds(told(store, HOLDS))


def test_an_alert_that_fires_again_is_the_same_row_and_its_end_is_told_no_more(store: Store) -> None:
    judge, run = judging(store, HOLDS), add_run(store)
    stream = add_stream(store, run)
    for turn, finding in enumerate((PAGE, again(PAGE, 1, active=False), again(PAGE, 2))):
        conclude(store, run, stream, finding)
        judge.judge(run, NOW + turn * SECOND)
        send(store, NOW + turn * SECOND)
    assert [("opened", "told")] == kinds(told(store, HOLDS))


def test_an_end_that_comes_while_the_opening_is_being_sent_is_sent_after_it(store: Store) -> None:
    judge, run = judging(store, HOLDS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW)
    with store.writing() as connection:
        (sending,) = query.due(connection, NOW)
        assert query.claim(connection, sending, NOW, NOW + 60 * SECOND)
    conclude(store, run, stream, again(PAGE, 1, active=False))
    judge.judge(run, NOW + SECOND)
    assert ["resolved"] == [row.kind for row in send(store, NOW + SECOND)]
    with store.writing() as connection:
        query.settle(connection, sending, outcome(sending, None, NOW + 2 * SECOND, stateful=True))
    assert ["resolved"] == [row.kind for row in send(store, NOW + 2 * SECOND)]


def test_where_alerts_are_held_pauses_stay_short_and_nothing_that_fires_is_given_up(store: Store) -> None:
    judge, run = judging(store, HOLDS), add_run(store)
    conclude(store, run, add_stream(store, run), PAGE)
    judge.judge(run, NOW)
    now = NOW
    for _ in range(12):
        send(store, now, "nobody answers")
        (row,) = told(store, HOLDS)
        assert now + MAX_ALERT_PAUSE_SECONDS * SECOND >= row.due
        now = row.due
    with store.reading() as connection:
        assert 1 == query.pending(connection)
    send(store, NOW + 3 * 86_400 * SECOND, "nobody answers")
    assert [("opened", "pending")] == kinds(told(store, HOLDS))


def test_an_incident_that_comes_and_goes_is_told_once_in_five_minutes(store: Store) -> None:
    judge, run = judging(store, HEARS), add_run(store)
    stream = add_stream(store, run)
    for turn in range(4):
        conclude(store, run, stream, again(PAGE, turn + 1))
        judge.judge(run, NOW + 2 * turn * SECOND)
        send(store, NOW + 2 * turn * SECOND)
        conclude(store, run, stream, again(PAGE, turn + 1, active=False))
        judge.judge(run, NOW + (2 * turn + 1) * SECOND)
        send(store, NOW + (2 * turn + 1) * SECOND)
    assert [("opened", "sent"), ("resolved", "sent")] == kinds(told(store, HEARS))
    conclude(store, run, stream, again(PAGE, 9))
    judge.judge(run, NOW + 20 * SECOND)
    assert [] == send(store, NOW + 20 * SECOND)
    assert [("opened")] == [row.kind for row in send(store, NOW + REOPEN_QUIET_NS)]
    assert REOPEN_QUIET_NS < COOLDOWN_NS


def test_a_channel_is_told_of_its_projects_and_severities_alone(store: Store) -> None:
    pages = Channel("pager", lambda _: None, filter=Filter(severities=("page",), projects=("sp*",)))
    others = Channel("others", lambda _: None, filter=Filter(projects=("vision",)))
    judge, run = judging(store, pages, others, HEARS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, TICKET)
    judge.judge(run, NOW)
    assert {"chat"} == {row.channel for row in rows(store, outbox)}
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW + SECOND)
    assert {"chat", "pager"} == {row.channel for row in rows(store, outbox)}


STORM = msgspec.structs.replace(TICKET, verdict="nonfinite-gradient", severity="page", title="NaN")
KERNEL = Finding("kernel-nan", "page", 5, 6, 9, "why", "do", "A kernel makes NaN")
ML = Channel("ml", lambda _: None, filter=Filter(classes=("ml",)))
PLATFORM = Channel("platform", lambda _: None, filter=Filter(classes=("platform",)))


def test_a_cause_of_another_class_reaches_its_own_channel_and_ends_its_consequence_on_the_first(store: Store) -> None:
    judge, run = judging(store, ML, PLATFORM, HEARS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, STORM)
    judge.judge(run, NOW)
    assert [["opened"], [], ["opened"]] == [[row.kind for row in told(store, each)] for each in (ML, PLATFORM, HEARS)]
    send(store, NOW)
    conclude(store, run, stream, KERNEL)
    judge.judge(run, NOW + SECOND)
    judge.judge(run, NOW + 2 * SECOND)
    heard = [[row.kind for row in told(store, each)] for each in (ML, PLATFORM, HEARS)]
    assert [["opened", "resolved"], ["opened"], ["opened"]] == heard
    assert "Closed: superseded." in told(store, ML)[1].message["body"]
    assert "A kernel makes NaN" in told(store, PLATFORM)[0].message["title"]


def test_nobody_new_hears_of_a_cause_that_somebody_has_acknowledged(store: Store) -> None:
    judge, run = judging(store, ML, PLATFORM), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, STORM)
    judge.judge(run, NOW)
    send(store, NOW)
    ManualActions(store, judge.outbox_writer).acknowledge(rows(store, incidents)[0].id, NOW + SECOND)
    conclude(store, run, stream, KERNEL)
    judge.judge(run, NOW + 2 * SECOND)
    assert [["opened", "resolved"], []] == [[row.kind for row in told(store, each)] for each in (ML, PLATFORM)]


def test_of_a_silenced_incident_nobody_hears_until_the_silence_ends_and_then_once(store: Store) -> None:
    judge, run = judging(store, HEARS, HOLDS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, again(PAGE, 1, severity="ticket"))
    judge.judge(run, NOW)
    send(store, NOW)
    (incident,) = rows(store, incidents)
    assert (
        ManualActions(store, judge.outbox_writer).silence(incident.id, NOW + 3600 * SECOND, NOW + SECOND, "ann")
        is not None
    )
    (silence,) = [row.message["silence"] for row in send(store, NOW + SECOND) if row.kind == "silenced"]
    assert {"alertname": "AmmeterScaleCollapse", "run": run, "project": "speech"} == {
        matcher["name"]: matcher["value"] for matcher in silence["matchers"]
    }
    assert "ann" == silence["createdBy"]
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW + 2 * SECOND)
    send(store, NOW + 2 * SECOND)
    assert [("opened", "sent")] == kinds(told(store, HEARS))
    judge.judge(run, NOW + 3600 * SECOND)
    assert ["opened", "opened"] == [row.kind for row in told(store, HEARS)]
    assert [None] == [row.silenced for row in rows(store, incidents)]
    judge.judge(run, NOW + 3601 * SECOND)
    assert 2 == len(told(store, HEARS))


def test_a_silenced_incident_that_ends_meanwhile_says_nothing(store: Store) -> None:
    judge, run = judging(store, HEARS), add_run(store)
    stream = add_stream(store, run)
    conclude(store, run, stream, PAGE)
    judge.judge(run, NOW)
    send(store, NOW)
    ManualActions(store, judge.outbox_writer).silence(rows(store, incidents)[0].id, NOW + 3600 * SECOND, NOW + SECOND)
    conclude(store, run, stream, again(PAGE, 1, active=False))
    judge.judge(run, NOW + 2 * SECOND)
    assert [("opened", "sent")] == kinds(told(store, HEARS))
