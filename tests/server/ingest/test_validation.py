"""How much of a journal one batch may claim: no shipper ever meets the bound, and who lies comes no further than it."""

from __future__ import annotations

import random
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ammeter
from ammeter import journal
from ammeter.journal import Entry, Journal
from ammeter.recording.schedule.budget import PRESETS
from ammeter.shipper.packing import build_payload, count_fitting
from ammeter.wire import codec
from ammeter.wire import frames as wire
from ammeter.wire.frames import Batch, Bye, Event, Hello, Lost, Schema, Steps, Tensor
from ammeter_server.db.queries import live
from ammeter_server.db.tables import metadata
from ammeter_server.http.problems import Problem
from ammeter_server.ingest import validation
from tests.server.ingest.senders import Sender, of_stream, rows, stored

HUGE = 2**63 - 1


def batches(
    entries: Sequence[Entry], refused: Sequence[int] = (), most: Sequence[int] = (2**22,)
) -> Iterator[tuple[Batch, int, int]]:
    """What a shipper makes of a stream, with where it begins and ends; most: bytes of journal at a time, in turn."""
    schema, left, number = None, list(entries), 0
    while left:
        count = count_fitting(left, schema, most[number % len(most)])
        packed = build_payload(left[:count], schema, refused)
        yield Batch(packed.items, packed.gaps), left[0].begin, left[count - 1].end
        for entry in left[:count]:
            if isinstance(entry.frame, Hello):
                schema = None if entry.begin in refused else entry.frame.schema
        left, number = left[count:], number + 1


def check(batch: Batch, begin: int, end: int) -> None:
    validation.check_extent(batch, len(codec.encode_batch(batch)), begin, end)


def check_all(entries: Sequence[Entry], refused: Sequence[int] = (), most: Sequence[int] = (2**22,)) -> int:
    """Every batch of a stream; returns how many there are."""
    claimed = list(batches(entries, refused, most))
    for claim in claimed:
        check(*claim)
    assert all(first[2] == second[1] for first, second in pairwise(claimed))
    return len(claimed)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_run_of_any_preset_comes_near_the_bound(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ammeter.watching.delivery.TMPFS_FOLDER", tmp_path)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path / "runs", preset=preset, budget=0.5)
    for step in range(40):
        model(torch.zeros(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(**{f"name{step // 10}": 1.0})
    run.close()
    (stream,) = journal.streams(tmp_path / "runs" / run.id)
    entries = list(journal.read(stream))
    assert 1 == check_all(entries)
    assert len(entries) == check_all(entries, most=(1,))
    assert check_all(entries, [entry.begin for entry in entries[::3]], most=(5_000,)) > 1


def frames(random: random.Random, tensors: int, count: int, text: int) -> Iterator[wire.Frame]:
    """A stream of such size: columns that come, rows that are alike and pack well, or are not, events, losses."""
    named = tuple(Tensor(f"layer.{index}.weight", (4, 4), "float32") for index in range(tensors))
    schema = Schema(tuple(wire.SCALARS), tuple(wire.STATS), named)
    who = uuid.uuid4()
    yield Hello(str(who), who.hex, schema, config={"x": "y" * text})
    now = time.time_ns()
    for step in range(count):
        width = random.choice([0, 1, schema.width])
        raw = random.randbytes(4 * width) if random.random() < 0.2 else bytes(4 * width)
        yield Steps(random.choice([step, 2**62 + step]), now + step, raw)
        if random.random() < 0.1:
            yield Event("step.skipped", step, now, {"scale": 1.0, "text": "z" * random.randrange(text + 1)})
        if random.random() < 0.05:
            yield Lost("journal-cap", 1, 2)
        if random.random() < 0.02:
            schema = Schema((*schema.scalars, f"said{step}"), schema.stats, named)
            yield Hello(str(who), who.hex, schema, config={"x": "y" * text})
    yield Bye("closed", count, now, "m" * text)


@given(
    st.randoms(use_true_random=False),
    st.sampled_from([0, 1, 30, 300]),
    st.integers(1, 300),
    st.sampled_from([0, 10, 20_000]),
    st.lists(st.sampled_from([1, 300, 20_000, 2**22]), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_journal_however_thinned_torn_or_refused_comes_near_the_bound(
    random: random.Random, tensors: int, count: int, text: int, most: list[int]
) -> None:
    with TemporaryDirectory() as place:
        writer = Journal(Path(place) / "stream", segment_bytes=100_000)
        for frame in frames(random, tensors, count, text):
            if isinstance(frame, Hello):
                writer.hello(frame)
            else:
                writer.append(frame)
        writer.close()
        closed = journal.segments(writer.folder)[:-1]
        for (_, path), (after, _) in zip(closed, journal.segments(writer.folder)[1:], strict=True):
            match random.randrange(5):
                case 0:
                    journal.thin(path, random.choice([0, 10]))
                case 1:
                    journal.drop(path, after)
                case 2:
                    data = bytearray(path.read_bytes())
                    data[random.randrange(len(data))] ^= 1
                    path.write_bytes(data)
                case 3:
                    path.unlink()
        entries = list(journal.read(writer.folder))
        refused = [entry.begin for entry in entries if random.random() < 0.05]
        assert check_all(entries, refused, most) > 0


def test_a_stream_whose_beginning_was_deleted_after_years_is_taken() -> None:
    gap = Lost("journal-deleted", begin=0, end=2**50)
    check(Batch(gaps=[gap]), 0, 2**50)


LIES: dict[str, tuple[list[wire.Item], list[Lost], int]] = {
    "an event": ([Event("a.b", 1, 1)], [], HUGE),
    "an event, and as many digits as go the fast way": ([Event("a.b", 1, 1)], [], 10**18 - 1),
    "an event, and a megabyte": ([Event("a.b", 1, 1)], [], 10 + 2**20),
    "a row": ([rows(1, 1)], [], 10 + 2**20),
    "a goodbye": ([Bye("closed", 1, 1)], [], HUGE),
    "a loss without a range": ([Lost("journal-cap", 2**62, 2**62)], [], HUGE),
    "a gap of nearly all": ([], [Lost("torn", 0, 0, 10, HUGE)], HUGE),
    "a gap of half": ([Event("a.b", 1, 1)], [Lost("torn", 0, 0, 10, 2**62)], 2**62),
    "many gaps": ([], [Lost("torn", 0, 0, 10 + n * 2**49, 10 + (n + 1) * 2**49) for n in range(3)], 10 + 3 * 2**49),
    "a gap and more": ([Event("a.b", 1, 1)], [Lost("torn", 0, 0, 10, 2**30)], 2**31),
}


@pytest.mark.parametrize("name", LIES)
def test_a_batch_that_claims_more_of_the_journal_than_it_can_hold_is_refused(sender: Sender, name: str) -> None:
    items, gaps, end = LIES[name]
    sender.open()
    before = stored(sender)
    answer = sender.post(items, 10, end, gaps=gaps)
    assert (422, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert answer.json()["limit"] in ("extent", "gap")
    assert str(answer.json()["most"]) in answer.json()["detail"]
    assert before == stored(sender)
    assert 200 == sender.post([Event("a.b", 1, 1)], 10, 20).status_code


def test_a_new_stream_cannot_claim_it_either(sender: Sender) -> None:
    assert 422 == sender.post([sender.hello()], 0, HUGE).status_code
    assert 422 == sender.post([], 0, HUGE, gaps=[Lost("torn", 0, 0, 0, HUGE)]).status_code
    assert [] == stored(sender, "runs")["runs"]


def test_declared_gaps_are_told_and_end_nothing(sender: Sender) -> None:
    """Its owner may declare as much lost as he likes, piece by piece: that is told, and others are well."""
    sender.open()
    offset = 10
    for _ in range(40):
        end = offset + 2**50
        answer = sender.post([], offset, end, gaps=[Lost("torn", 2**62, 2**62, offset, end)])
        assert end == answer.json()["offset"]
        offset = end
    assert 200 == sender.post([rows(0, 3), Event("a.b", 1, 1)], offset, offset + 500).status_code
    assert offset + 500 == of_stream(sender, "acknowledged")
    run = sender.client.get(f"/api/v1/runs/{sender.run}").json()
    assert "torn" in run["lost"]
    assert 3 == run["last_step"]
    assert [1] == [event["step"] for event in sender.client.get(f"/api/v1/runs/{sender.run}/events").json()["items"]]
    for path in ("/metrics", "/metrics/self", "/api/v1/runs"):
        assert 200 == sender.client.get(path).status_code


def test_offsets_whose_sum_no_database_holds_do_not_blind_those_who_watch(sender: Sender) -> None:
    sender.open()
    streams = metadata.tables["streams"]
    with sender.store.writing() as connection:
        connection.execute(streams.update().where(streams.c.run == sender.run).values(acknowledged=HUGE - 5))
        for name in ("a", "b"):
            connection.execute(streams.insert().values(run=sender.run, id=name, acknowledged=HUGE - 5))
    with sender.store.reading() as connection:
        before = live.versions(connection, [sender.run])
    with sender.store.writing() as connection:
        connection.execute(streams.update().where(streams.c.id == "a").values(acknowledged=HUGE))
    with sender.store.reading() as connection:
        assert before != live.versions(connection, [sender.run])


@given(st.integers(0, HUGE), st.integers(0, HUGE))
def test_beyond_what_the_body_can_hold_nothing_is_claimed(offset: int, extent: int) -> None:
    batch = Batch([Event("a.b", 1, 1)])
    body = len(codec.encode_batch(batch))
    try:
        validation.check_extent(batch, body, offset, offset + extent)
    except Problem:
        assert extent > body
    else:
        assert extent <= validation.SPARE_BYTES + 2 * body + validation.FRAME_BYTES


def test_a_row_in_a_journal_takes_no_more_than_is_reckoned() -> None:
    longest = Steps(2**63 - 1, 2**63 - 1, struct.pack("<20000f", *range(20000)))
    assert len(codec.encode(longest, 2**63 - 1)) <= validation.ROW_BYTES + 4 * 20_000
