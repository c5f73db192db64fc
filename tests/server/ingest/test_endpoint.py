from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Select, select

from ammeter.wire import codec, columns, frames
from ammeter.wire.frames import Batch, Block, Bye, Event, Hello, Lost, Schema, Steps, Tensor
from ammeter_server.auth import tokens
from ammeter_server.db import Store, connect
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.db.tables import metadata
from tests.server.disks import small_disk
from tests.server.feeding import Stream, break_down, serving, train

SCHEMA = Schema(("loss", "scale"), ("grad.norm",), (Tensor("w", (2, 3), "float32"),))
HEADERS = {"Content-Type": frames.CONTENT_TYPE}


@dataclass
class Sender:
    """Posts whatever it is told to, right or wrong."""

    client: httpx.Client
    store: Store
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)

    def hello(self, schema: Schema = SCHEMA, **said: Any) -> Hello:
        return Hello(self.run, self.stream, schema, **{"started": 1, **said})

    def post(self, items: list[frames.Item], offset: int, end: int, **batch: Any) -> httpx.Response:
        return self.post_body(codec.encode_batch(Batch(items, **batch)), offset, end)

    def post_body(self, body: bytes, offset: int = 0, end: int = 10, **headers: str) -> httpx.Response:
        path = f"/api/v1/runs/{self.run}/streams/{self.stream}/frames?offset={offset}&end={end}"
        return self.client.post(path, content=body, headers=HEADERS | headers)

    def open(self) -> None:
        assert 200 == self.post([self.hello()], 0, 10).status_code


def rows(first: int, last: int, schema: Schema = SCHEMA, **given: float) -> Block:
    values = np.full(schema.width, 1.5, "<f4")
    for name, value in given.items():
        values[schema.scalars.index(name)] = value
    steps = [Steps(step, 1000 + step, values.tobytes()) for step in range(first, last + 1)]
    return columns.pack(columns.view(schema, steps))


@dataclass
class Place:
    """A running collector: a client for it, and its database."""

    client: httpx.Client
    store: Store


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Place]:
    with serving(folder, **settings) as client:
        store = connect(f"sqlite:///{folder / 'collector.db'}")
        try:
            yield Place(client, store)
        finally:
            store.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("ingest")) as place:
        yield place


@pytest.fixture
def sender(place: Place) -> Sender:
    return Sender(place.client, place.store)


def stored(sender: Sender, *names: str) -> dict[str, list[Any]]:
    """The run's rows in all tables of ingest, or in these, by their keys; without what the judge writes by itself."""
    with sender.store.reading() as connection:
        return {
            name: sorted(map(tuple, connection.execute(of_run(sender, name))), key=repr) for name in names or INGEST
        }


def of_run(sender: Sender, name: str) -> Select[Any]:
    table = metadata.tables[name]
    by_judge = {"judged_version", "judged_at", "claimed_by", "claimed_until", "fleet_progress", "state", "ended"}
    shown = [column for column in table.c if name != "runs" or column.name not in by_judge]
    return select(*shown).where(table.c["id" if name == "runs" else "run"] == sender.run)


INGEST = ("runs", "streams", "schemas", "chunks", "events", "findings")


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


def of_stream(sender: Sender, name: str) -> Any:
    streams = metadata.tables["streams"]
    with sender.store.reading() as connection:
        return connection.execute(select(streams.c[name]).where(streams.c.id == sender.stream)).scalar_one()


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


def broken_blocks() -> dict[str, Callable[[], Block]]:
    good = rows(5, 9)
    wide = Schema(("loss",), (), ())
    replace = msgspec.structs.replace
    return {
        "an unknown schema": lambda: replace(good, schema="0" * 16),
        "another width": lambda: replace(rows(5, 9, wide), schema=SCHEMA.id),
        "no zstd": lambda: replace(good, data=b"not packed"),
        "cut off data": lambda: replace(good, data=good.data[:-3]),
        "more rows than data": lambda: replace(good, rows=6),
        "no rows": lambda: replace(good, rows=0),
        "negative rows": lambda: replace(good, rows=-5),
        "more rows than memory": lambda: replace(good, rows=10**6),
        "steps that go back": lambda: rows(2, 4),
        "a step that is there": lambda: rows(3, 5),
        "other steps than it says": lambda: replace(good, first_step=6),
        "steps below 0": lambda: replace(good, first_step=-5),
        "steps that stand still": lambda: columns.pack(columns.view(SCHEMA, [Steps(7, 1, b""), Steps(7, 2, b"")])),
        "a time before 1970": lambda: columns.pack(columns.view(SCHEMA, [Steps(7, -1, b"")])),
    }


@pytest.mark.parametrize("name", broken_blocks())
def test_a_wrong_block_is_refused_by_its_index_and_nothing_changes(sender: Sender, name: str) -> None:
    sender.post([sender.hello(), rows(0, 3)], 0, 100)
    before = stored(sender)
    answer = sender.post([Event("a.b", 4, 4), rows(4, 4), broken_blocks()[name](), rows(50, 51)], 100, 200)
    assert (422, 2) == (answer.status_code, answer.json().get("item")), answer.text
    assert before == stored(sender)
    assert 200 == sender.post([rows(4, 4)], 100, 200).json()["offset"]


@pytest.mark.parametrize(
    "item",
    [
        Hello(str(uuid.UUID(int=1)), "0" * 32, SCHEMA),
        Event("", 1, 1),
        Event("x" * 5000, 1, 1),
        Event("a.b", -2, 1),
        Event("a.b", 2**63, 1),
        Event("a.b", 1, -1),
        Event("a.b", 1, 1, {"x": "y" * 300_000}),
        Lost("", 1),
        Lost("cap", -1),
        Bye("closed", 1, 2**63),
    ],
    ids=lambda item: f"{type(item).__name__} {str(item)[:40]}",
)
def test_an_item_that_cannot_be_is_refused_by_its_index(sender: Sender, item: frames.Item) -> None:
    sender.open()
    before = stored(sender)
    answer = sender.post([Event("a.b", 0, 0), item], 10, 20)
    assert (422, 1) == (answer.status_code, answer.json()["item"])
    assert before == stored(sender)


@pytest.mark.parametrize(
    "said",
    [
        {"rank": -1},
        {"world_size": 0},
        {"started": -1},
        {"name": "x" * 2000},
        {"config": {"x": "y" * 300_000}},
        {"schema": Schema(("loss", "loss"))},
        {"schema": Schema((), ("a", "b"), (Tensor("w", (-1,), "float32"),))},
        {"schema": Schema((), ("a", "b"), (Tensor("w", (2**40, 2**40), "float32"),))},
        {"schema": Schema(tuple(map(str, range(1_000_001))))},
    ],
    ids=lambda said: str(said)[:40],
)
def test_a_hello_that_cannot_be_opens_no_run(sender: Sender, said: dict[str, Any]) -> None:
    answer = sender.post([sender.hello(**said)], 0, 10)
    assert (422, 0) == (answer.status_code, answer.json()["item"])
    assert [] == stored(sender, "runs")["runs"]


def test_a_stream_begins_with_a_hello(sender: Sender) -> None:
    answer = sender.post([rows(0, 3)], 0, 10)
    assert (422, 0) == (answer.status_code, answer.json()["item"])
    assert [] == stored(sender, "runs")["runs"]


def test_nothing_follows_a_goodbye(sender: Sender) -> None:
    sender.post([sender.hello(), rows(0, 3), Bye("closed", 3, 3)], 0, 100)
    for items in ([rows(4, 5)], [Bye("lost", 3, 3)]):
        answer = sender.post([*items], 100, 200)
        assert (422, 0) == (answer.status_code, answer.json()["item"])
    assert "closed" == of_stream(sender, "bye_reason")


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, b"", {}),
        (400, b"\xc1", {}),
        (400, b"\x91" * 100_000, {}),
        (400, codec.encode_batch(Batch())[:-4], {}),
        (400, codec.encode_batch(Batch(protocol=99)), {}),
        (422, codec.encode_batch(Batch()), {}),
        (415, codec.encode_batch(Batch()), {"Content-Type": "application/json"}),
        (415, codec.encode_batch(Batch()), {"Content-Encoding": "gzip"}),
    ],
)
def test_a_body_that_is_no_batch_is_refused(sender: Sender, status: int, body: bytes, headers: dict[str, str]) -> None:
    answer = sender.post_body(body, 0, 10, **headers)
    assert (status, status) == (answer.status_code, answer.json()["status"])
    assert [] == stored(sender, "runs")["runs"]


def test_an_item_of_no_known_kind_is_refused_by_its_index(sender: Sender) -> None:
    body = msgspec.msgpack.encode({"items": [{"kind": "event", "name": "a.b", "step": 1, "time": 1}, {"kind": "gift"}]})
    answer = sender.post_body(body)
    assert (422, 1) == (answer.status_code, answer.json()["item"])


@pytest.mark.parametrize("path", ["not-a-run/streams/{s}", "{r}/streams/xyz", "{R}/streams/{s}"])
def test_a_place_that_cannot_be_is_refused(sender: Sender, path: str) -> None:
    place = path.format(r=sender.run, R="A" + sender.run[1:].upper(), s=sender.stream)
    answer = sender.client.post(f"/api/v1/runs/{place}/frames?offset=0&end=1", headers=HEADERS)
    assert 422 == answer.status_code


@pytest.mark.parametrize("query", ["", "?offset=-1&end=1", "?offset=2&end=1", "?offset=0&end=99999999999999999999"])
def test_offsets_that_cannot_be_are_refused(sender: Sender, query: str) -> None:
    path = f"/api/v1/runs/{sender.run}/streams/{sender.stream}/frames{query}"
    answer = sender.client.post(path, content=codec.encode_batch(Batch()), headers=HEADERS)
    assert (422, "application/problem+json") == (answer.status_code, answer.headers["content-type"])


def test_a_body_over_the_limit_is_refused_by_its_announced_or_its_real_size(tmp_path: Path) -> None:
    with opened(tmp_path, max_body_bytes=1000) as place:
        sender = Sender(place.client, place.store)
        for body in (b"x" * 1001, (b"x" * 100 for _ in range(11))):
            answer = sender.post_body(body)  # type: ignore[arg-type]
            assert (413, 1000) == (answer.status_code, answer.json()["most"])
            assert "1000" in answer.json()["detail"]


def test_blocks_that_unpack_to_more_than_the_limit_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    with opened(tmp_path, max_unpacked_bytes=10_000) as place:
        sender = Sender(place.client, place.store)
        answer = sender.post([sender.hello(), rows(0, 999)], 0, 10)
        assert 413 == answer.status_code
        assert "10000" in answer.json()["detail"]


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


@pytest.mark.parametrize("gap", [(0, 0), (5, 4), (90, 101), (120, 130)])
def test_a_gap_outside_its_batch_is_refused(sender: Sender, gap: tuple[int, int]) -> None:
    answer = sender.post([sender.hello()], 0, 100, gaps=[Lost("torn", 1, 0, *gap)])
    assert 422 == answer.status_code


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


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_breaks_the_collector(sender: Sender, body: bytes) -> None:
    assert sender.post_body(body).status_code in (400, 413, 422)


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_byte_breaks_the_collector(place: Place, data: st.DataObject) -> None:
    sender = Sender(place.client, place.store)
    items: list[frames.Item] = [sender.hello(), rows(0, 5), Event("a.b", 3, 3, {"x": 1}), Bye("exit", 5, 6)]
    body = bytearray(codec.encode_batch(Batch(items, [Lost("torn", 1, 0, 2, 4)])))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert sender.post_body(bytes(body)).status_code in (200, 400, 413, 422)
