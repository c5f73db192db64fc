"""Each batch is stored once, from the offset that the collector acknowledged."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from ammeter.wire import columns, frames
from ammeter.wire.frames import Event, Lost, Schema, Steps
from ammeter_server.auth import tokens
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.db.tables import metadata
from tests.server.disks import small_disk
from tests.server.feeding import Stream, break_down, train
from tests.server.ingest.senders import SCHEMA, Place, Sender, of_stream, opened, rows, stored


def test_blocks_are_stored_as_they_came(sender: Sender) -> None:
    packed = rows(0, 9)
    answer = sender.post([sender.hello(), packed], 0, 100)
    assert {"offset": 100, "directives": []} == answer.json()
    (chunk,) = stored(sender, "chunks")["chunks"]
    assert packed.data == chunk[-1]


def test_a_batch_sent_again_is_acknowledged_again_and_not_applied(sender: Sender) -> None:
    items: list[frames.Item] = [sender.hello(), rows(0, 3), Event("step.skipped", 3, 5), Lost("journal-cap", 4, 1)]
    sender.post(items, 0, 100)
    before = stored(sender)
    for offset, end in ((0, 100), (0, 50), (100, 100)):
        assert 100 == sender.post(items if offset == 0 else [], offset, end).json()["offset"]
    after = stored(sender)
    assert before["chunks"] == after["chunks"]
    assert before["events"] == after["events"]
    assert {"journal-cap": {"steps": 4, "events": 1}} == of_stream(sender, "lost")


@pytest.mark.parametrize(("offset", "end"), [(50, 150), (101, 150), (99, 150), (100 + 1, 2**62)])
def test_a_batch_from_elsewhere_is_told_where_to_go_on(sender: Sender, offset: int, end: int) -> None:
    sender.post([sender.hello(), rows(0, 3)], 0, 100)
    answer = sender.post([rows(4, 5)], offset, end)
    assert (409, 100, "application/problem+json") == (
        answer.status_code,
        answer.json()["offset"],
        answer.headers["content-type"],
    )


def test_a_restored_older_database_is_caught_up_with(tmp_path: Path) -> None:
    with opened(tmp_path) as place:
        sender = Sender(place.client, place.store)
        sender.post([sender.hello(), rows(0, 3)], 0, 100)
    shutil.copy(tmp_path / "collector.db", tmp_path / "backup")
    with opened(tmp_path) as place:
        sender.client, sender.store = place.client, place.store
        assert 200 == sender.post([rows(4, 5)], 100, 200).status_code
    for left in tmp_path.glob("collector.db*"):
        left.unlink()
    shutil.copy(tmp_path / "backup", tmp_path / "collector.db")
    with opened(tmp_path) as place:
        sender.client, sender.store = place.client, place.store
        refused = sender.post([rows(6, 7)], 200, 300)
        assert (409, 100) == (refused.status_code, refused.json()["offset"])
        assert 300 == sender.post([rows(4, 5), rows(6, 7)], 100, 300).json()["offset"]
        assert [0, 4, 6] == [chunk[2] for chunk in stored(sender, "chunks")["chunks"]]


def test_a_heartbeat_says_only_that_somebody_is_there(sender: Sender) -> None:
    sender.post([sender.hello(), rows(0, 3)], 0, 100)
    before, heard = stored(sender, "chunks", "events", "findings"), of_stream(sender, "last_seen")
    assert 100 == sender.post([], 100, 100, alive=False, backlog=77).json()["offset"]
    assert before == stored(sender, "chunks", "events", "findings")
    assert heard < of_stream(sender, "last_seen")
    assert (False, 77, 100) == tuple(of_stream(sender, name) for name in ("alive", "backlog", "acknowledged"))


def test_a_heartbeat_of_an_unknown_stream_opens_nothing(sender: Sender) -> None:
    assert 0 == sender.post([], 0, 0).json()["offset"]
    assert 409 == sender.post([], 70, 70).status_code
    assert [] == stored(sender, "streams")["streams"]


def test_gaps_are_counted_once_by_reason(sender: Sender) -> None:
    gaps = [Lost("journal-cap", 7, 1, 20, 30), Lost("journal-cap", 2, 0, 40, 45), Lost("torn", 0, 0, 50, 60)]
    items: list[frames.Item] = [sender.hello(), Lost("journal-unwritable", 3)]
    for _ in range(2):
        assert 100 == sender.post(items, 0, 100, gaps=gaps).json()["offset"]
    expected = {
        "journal-cap": {"steps": 9, "events": 1},
        "torn": {"steps": 0, "events": 0},
        "journal-unwritable": {"steps": 3, "events": 0},
    }
    assert expected == of_stream(sender, "lost")


def test_a_stream_whose_beginning_is_lost_goes_on_where_its_journal_does(sender: Sender) -> None:
    assert 50 == sender.post([], 0, 50, gaps=[Lost("journal-cap", 9, 0, 0, 50)]).json()["offset"]
    assert 90 == sender.post([sender.hello(name="late"), rows(9, 12)], 50, 90).json()["offset"]
    (run,) = stored(sender, "runs")["runs"]
    assert "late" == run[1]
    assert {"journal-cap": {"steps": 9, "events": 0}} == of_stream(sender, "lost")


def test_what_json_and_postgresql_cannot_say_is_stored_in_words(sender: Sender) -> None:
    data = {"x": float("nan"), "y": [float("-inf")], "z": b"\x01", "n\x00": "a\x00b", "big": 2**64 - 1}
    sender.post([sender.hello(name="a\x00b"), Event("odd.data", 0, 0, data)], 0, 10)
    (event,) = stored(sender, "events")["events"]
    expected = {"x": "NaN", "y": ["-Infinity"], "z": "01", "n\ufffd": "a\ufffdb", "big": str(2**64 - 1)}
    assert expected == event[-1]


def test_the_schema_may_change_in_the_middle_of_a_batch(sender: Sender) -> None:
    wider = Schema(("loss", "scale", "accuracy"), SCHEMA.stats, SCHEMA.tensors)
    items: list[frames.Item] = [sender.hello(), rows(0, 3), sender.hello(wider), rows(4, 6, wider, accuracy=0.5)]
    assert 200 == sender.post(items, 0, 100).status_code
    assert 200 == sender.post([rows(7, 8, wider)], 100, 200).status_code
    assert 422 == sender.post([rows(9, 9)], 200, 300).status_code
    assert 1.5 == of_stream(sender, "latest")["accuracy"]
    assert 2 == len(stored(sender, "schemas")["schemas"])


def test_of_two_senders_of_one_stream_each_frame_is_taken_once(sender: Sender) -> None:
    sender.open()

    def send() -> None:
        for index in range(20):
            offset = 10 + index * 10
            items: list[frames.Item] = [rows(index, index), Event("a.b", index, index)]
            assert sender.post(items, offset, offset + 10).status_code in (200, 409)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    send()
    assert 210 == of_stream(sender, "acknowledged")
    stored = views(sender.store, sender.run, sender.stream, None, None)  # a keeper may have joined the blocks
    assert list(range(20)) == [step for view in stored for step in view.steps.tolist()]
    assert 20 == of_stream(sender, "events") == of_stream(sender, "rows")


def test_what_is_concluded_does_not_depend_on_how_a_stream_is_cut(place: Place) -> None:
    whole, cut = Stream(place.client), Stream(place.client)
    train(whole, 0, 39)
    break_down(whole, 40, 60)
    whole.send()
    train(cut, 0, 39)
    break_down(cut, 40, 60)
    cut.pack()
    items, cut.items = cut.items, []
    for item in items:
        cut.items = [item]
        cut.send()
    streams, findings = metadata.tables["streams"], metadata.tables["findings"]
    with place.store.reading() as connection:
        rows_of = {row.id: row for row in connection.execute(select(streams))}
        bodies = {
            stream: {row.verdict: row.body for row in connection.execute(select(findings)) if row.stream == stream}
            for stream in rows_of
        }
    a, b = rows_of[whole.stream], rows_of[cut.stream]
    assert bodies[whole.stream] == bodies[cut.stream] != {}
    for name in ("counters", "latest", "last_step", "rows", "events", "precision"):
        assert rounded(getattr(a, name)) == rounded(getattr(b, name)), name


def rounded(value: Any) -> Any:
    """Sums of floats differ in their last bits by the order they are added in."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return round(value, 9) if isinstance(value, float) else value


def test_a_full_disk_is_told_and_what_was_stored_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, opened(disk.folder) as place:
        sender = Sender(place.client, place.store)
        sender.open()
        before = stored(sender, "chunks")
        values = np.random.default_rng(0).standard_normal((100_000, SCHEMA.width)).astype("<f4")
        steps = [Steps(step, step, row.tobytes()) for step, row in enumerate(values)]
        answer = sender.post([columns.pack(columns.view(SCHEMA, steps))], 10, 20)
        assert (507, "30") == (answer.status_code, answer.headers["retry-after"])
        assert (before, 10) == (stored(sender, "chunks"), of_stream(sender, "acknowledged"))
        assert 200 == sender.post([rows(0, 1)], 10, 20).status_code


def test_another_projects_token_does_not_see_the_run(tmp_path: Path) -> None:
    with opened(tmp_path) as place:
        secrets = {name: tokens.create(place.store, name, ("ingest",), name) for name in ("ours", "theirs")}
        sender = Sender(place.client, place.store)
        place.client.headers["Authorization"] = f"Bearer {secrets['ours']}"
        assert 200 == sender.post([sender.hello(project="said")], 0, 10).status_code
        place.client.headers["Authorization"] = f"Bearer {secrets['theirs']}"
        assert 404 == sender.post([rows(0, 1)], 10, 20).status_code
        (run,) = stored(sender, "runs")["runs"]
        assert "ours" == run[2]


def test_a_heartbeat_brings_the_newest_completed_step(sender: Sender) -> None:
    sender.post([sender.hello(), rows(0, 9)], 0, 100, completed_step=9, completed_time=9_000)
    assert (9, 9_000) == (of_stream(sender, "completed_step"), of_stream(sender, "completed_time"))
    sender.post([], 100, 100, completed_step=17, completed_time=17_000)
    assert (9, 17, 17_000) == tuple(
        of_stream(sender, name) for name in ("last_step", "completed_step", "completed_time")
    )
    run = sender.client.get(f"/api/v1/runs/{sender.run}").json()
    assert 17 == run["last_step"]
    sender.post([], 100, 100)
    assert 17 == of_stream(sender, "completed_step")
    assert 200 == sender.post([rows(10, 17)], 100, 200).status_code
    assert 17 == of_stream(sender, "last_step")


@pytest.mark.parametrize("completed", [{"completed_step": -2}, {"completed_step": 2**63}, {"completed_time": -1}])
def test_an_impossible_completed_step_is_refused(sender: Sender, completed: dict[str, int]) -> None:
    sender.open()
    assert sender.post([], 10, 10, **completed).status_code in (400, 422)
    assert of_stream(sender, "completed_step") is None
