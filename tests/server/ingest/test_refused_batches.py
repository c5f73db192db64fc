"""A batch that cannot be is refused by the index of its item, and nothing changes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter.wire import codec, columns, frames
from ammeter.wire.frames import Batch, Block, Bye, Event, Hello, Lost, Schema, Steps, Tensor
from tests.server.ingest.senders import HEADERS, SCHEMA, Place, Sender, of_stream, opened, rows, stored


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


@pytest.mark.parametrize("gap", [(0, 0), (5, 4), (90, 101), (120, 130)])
def test_a_gap_outside_its_batch_is_refused(sender: Sender, gap: tuple[int, int]) -> None:
    answer = sender.post([sender.hello()], 0, 100, gaps=[Lost("torn", 1, 0, *gap)])
    assert 422 == answer.status_code


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
