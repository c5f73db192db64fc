from __future__ import annotations

import pytest

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store
from ammeter_server.db.tables import incidents, outbox
from ammeter_server.judging.judge import Judge
from ammeter_server.judging.manual_actions import ManualActions
from ammeter_server.notify.channel import Channel
from tests.server.judged_runs import NOW, PAGE, add_run, add_stream, conclude, rows

CHANNELS = tuple(Channel(name, lambda _: None) for name in ("json-1", "mail-2"))


@pytest.fixture
def store(either_store: Store) -> Store:
    return either_store


def test_a_person_acknowledges_and_closes(store: Store) -> None:
    judge = Judge(store, Settings(), CHANNELS)
    actions = ManualActions(store, judge.outbox_writer)
    run = add_run(store)
    conclude(store, run, add_stream(store, run), PAGE)
    judge.judge(run, NOW)
    (incident,) = rows(store, incidents)
    taken = actions.acknowledge(incident.id, NOW + 1)
    assert taken is not None
    assert ("acknowledged", NOW + 1) == (taken.state, taken.acknowledged)
    again = actions.acknowledge(incident.id, NOW + 2)
    assert again == taken
    closed = actions.close(incident.id, NOW + 3)
    assert closed is not None
    assert ("closed", "by hand") == (closed.state, closed.closed_reason)
    assert ["opened", "opened", "resolved", "resolved"] == sorted(row.kind for row in rows(store, outbox))
    judge.judge_due(NOW + 4)
    assert "closed" == rows(store, incidents)[0].state
    assert actions.acknowledge(f"{run}.nothing.1", NOW) is None
