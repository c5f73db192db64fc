"""Hostile values in valid batches break neither the stream nor a page."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter.counters.events import MAX_SUM
from ammeter.counters.stream import MAX_REASONS, SUMS
from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter.wire.frames import Batch, Block, Event, Lost, Schema, Tensor
from ammeter_server.http.problems import Problem
from ammeter_server.ingest import stream_update, validation
from ammeter_server.runs import latest_values
from tests.parts import need
from tests.server.ingest.bodies import body_of, event_with
from tests.server.ingest.senders import SCHEMA, Sender, of_stream, opened

HUGE = 2**63 - 1
BAD = "\u202e<img src=x onerror=alert(1)>\n\"'\\{}\r\x00\x1b[2J# TYPE x counter"


POISON: dict[str, list[Event | Lost]] = {
    "losses": [Lost("cap", HUGE, HUGE)] * 3,
    "many reasons": [Lost(f"{index}" * 50, 1) for index in range(500)],
    "samples beyond float64": [Event("values.logged", 1, 1, {"samples": 1.7e308})] * 3,
    "samples beyond int64": [Event("values.logged", 1, 1, {"samples": 2**64 - 1})] * 3,
    "samples below zero": [Event("values.logged", 1, 1, {"samples": -1e9})] * 3,
    "many logged names": [Event("values.logged", 1, 1, {f"n{index}": 1.0 for index in range(9000)})],
    "steps at the end of time": [Event("a.b", HUGE, HUGE)],
}


@pytest.mark.parametrize("name", POISON)
def test_numbers_without_measure_break_neither_the_stream_nor_any_page(sender: Sender, name: str) -> None:
    assert 200 == sender.post([sender.hello(), *POISON[name]], 0, 10).status_code
    assert 200 == sender.post([*POISON[name]], 10, 20).status_code
    check_pages_and_numbers(sender)


@pytest.mark.parametrize("value", [3e38, -3e38, float("nan"), float("inf"), float("-inf"), 1e-45])
def test_rows_of_any_value_break_neither_the_stream_nor_any_page(sender: Sender, value: float) -> None:
    schema = Schema(tuple(frames.SCALARS), tuple(frames.STATS), (Tensor("w", (2**61,), "float32"),) * 2)
    assert 200 == sender.post([sender.hello(schema), filled(schema, 0, value)], 0, 10).status_code
    assert 200 == sender.post([filled(schema, 40, value)], 10, 20).status_code
    check_pages_and_numbers(sender)


def test_events_beyond_the_cap_are_judged_and_counted_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_update, "MAX_EVENTS", 5)
    with opened(tmp_path) as place:
        sender = Sender(place.client, place.store)
        events: list[frames.Item] = [Event("scaler.backoff", step, step, {"from": 2.0, "to": 1.0}) for step in range(4)]
        assert 200 == sender.post([sender.hello(), *events], 0, 10).status_code
        assert 200 == sender.post(events, 10, 20).status_code
        assert 200 == sender.post(events, 20, 30).status_code
        document = place.client.get(f"/api/v1/runs/{sender.run}/events").json()["items"]
        run = place.client.get(f"/api/v1/runs/{sender.run}").json()
        assert (5, {"steps": 0, "events": 7}) == (len(document), run["lost"]["events-cap"])
        assert 12 == run["counters"]["backoffs"]
        assert 'limited_total{limit="events"}' in place.client.get("/metrics/self").text


def check_pages_and_numbers(sender: Sender) -> None:
    for path in ("/metrics", "/metrics/self", "/api/v1/runs", f"/api/v1/runs/{sender.run}"):
        assert 200 == sender.client.get(path).status_code, path
    counters = of_stream(sender, "counters")
    assert all(0 <= counters[counter] <= MAX_SUM for counter in SUMS)
    assert len(of_stream(sender, "latest")) <= latest_values.MAX_NAMES
    assert len(of_stream(sender, "lost")) <= MAX_REASONS + 1


def filled(schema: Schema, first: int, value: float) -> Block:
    row = np.full(schema.width, value, "<f4").tobytes()
    return block.pack(block.view(schema, [frames.Steps(step, step, row) for step in range(first, first + 40)]))


@pytest.mark.parametrize("depth", [15, 17, 400, 900, *range(950, 1001, 4), 5000])
def test_data_of_any_depth_are_stored_or_refused(sender: Sender, depth: int) -> None:
    sender.open()
    for nested in (b"\x91" * depth + b"\x90", b"\x81\xa1x" * depth + b"\x80"):
        answer = sender.post_body(body_of(event_with(nested)), of_stream(sender, "acknowledged"), HUGE - 5000 + depth)
        assert answer.status_code in (200, 400, 409, 422), answer.text
    assert 200 == sender.client.get(f"/api/v1/runs/{sender.run}/events").status_code


def test_names_that_are_code_stay_names_in_the_metrics(sender: Sender) -> None:
    data = {"name": BAD, "project": BAD, "host": BAD, "environment": {"torch": BAD * 3000, "device": BAD}}
    schema = Schema(("loss", BAD), (), (Tensor(BAD, (1,), BAD),))
    items: list[frames.Item] = [
        sender.hello(schema, **data),
        Lost(BAD, 1),
        Event(BAD, 0, 0, {BAD: BAD}),
        Event("autocast.entered", 0, 0, {"grad": True, "dtype": BAD}),
    ]
    assert 200 == sender.post(items, 0, 10).status_code
    kind = "application/openmetrics-text; version="
    for accept in ("text/plain", f"{kind}1.0.0; escaping=odd", f"{kind}zzz", f"{kind}1.{'9' * 5000}", ";;==\xff"):
        for path in ("/metrics", "/metrics/self"):
            response = sender.client.get(path, headers={b"Accept": accept.encode("latin-1")})
            assert 200 == response.status_code
    response = sender.client.get("/metrics")
    assert max(map(len, response.text.splitlines())) < 4000
    promtool = subprocess.run([need("promtool"), "check", "metrics"], input=response.content, capture_output=True)
    assert 0 == promtool.returncode, promtool.stderr.decode()


SCALAR = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
TREE = st.recursive(
    SCALAR | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["hello", "block", "event", "lost", "bye", "x"])
MEMBERS = ("run", "stream", "schema", "data", "config", "name", "step", "time", "reason", "rows")
ITEMS = st.lists(st.fixed_dictionaries({"kind": KINDS}, optional=dict.fromkeys(MEMBERS, TREE)), max_size=3)


@given(st.dictionaries(st.sampled_from(["items", "gaps", "alive", "backlog", "protocol"]), TREE) | TREE)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_decoded_is_a_batch_or_a_problem(tree: Any) -> None:

    try:
        batch = validation.decoded(msgspec.msgpack.encode(tree))
    except Problem as problem:
        found = problem.status in (400, 413, 422)
    else:
        found = isinstance(batch, Batch)
    assert found


@given(ITEMS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_item_that_is_none_is_named_by_its_index(items: list[dict[str, Any]]) -> None:

    try:
        batch = validation.decoded(msgspec.msgpack.encode({"items": items}))
    except Problem as problem:
        found = 0 <= problem.members["item"] < len(items)
    else:
        found = len(items) == len(batch.items)
    assert found


@st.composite
def _packed(draw: st.DrawFn) -> Block:
    """A block whose parts need not fit each other."""
    rows, columns = draw(st.integers(-1, 40)), draw(st.integers(-1, 2 * SCHEMA.width))
    size = draw(st.sampled_from([0, 1, max(rows, 0) * (16 + 4 * max(columns, 0)), 4096]))
    raw = draw(st.binary(min_size=size, max_size=size)) if size < 64 else draw(st.randoms()).randbytes(size)
    data = draw(st.sampled_from([raw, zstandard.ZstdCompressor().compress(raw), raw[::-1]]))
    first = draw(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 50))
    return Block(SCHEMA.id, rows, columns, first, draw(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 90)), data)


@given(_packed())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_block_of_anything_is_rows_of_its_schema_or_a_bad_block(packed: Block) -> None:
    try:
        view = block.unpack(packed, SCHEMA)
    except (block.BadBlock, ValueError, MemoryError):
        return
    assert (packed.rows, SCHEMA.width) == (len(view), view.values.shape[0])
