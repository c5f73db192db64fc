"""The reader that all exporters share."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ammeter import journal
from ammeter.journal import Journal, find
from ammeter.recorded.recorded_run import NoRows, RecordedRun, load
from ammeter.wire.frames import Event, Hello, Lost, Schema
from tests.agent.export.exporting import Rows, assert_same, expected, narrow, recorded
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import SECOND, Stream, warm


def rows_of(run: RecordedRun) -> Rows:
    return {
        (stream.hello.stream, step): values
        for stream in run.streams
        for section in run.read(stream)
        for step, _, values in section.records()
    }


def test_every_rank_attempt_and_host_has_its_own_series(tmp_path: Path) -> None:
    streams = [narrow("w").good() for _ in range(4)]
    places: list[dict[str, Any]] = [
        {"rank": 1, "started": 5},
        {"rank": 0, "started": 9},
        {"rank": 0, "started": 4},
        {"role": "host", "host": "node7", "started": 3},
    ]
    names = [recorded(stream, tmp_path, **place) for stream, place in zip(streams, places, strict=True)]
    run = load(tmp_path / RUN)
    prefixes = {stream.hello.stream: (stream.prefix, stream.rank) for stream in run.streams}
    wanted = [("rank_1/", 1), ("rank_0/attempt_2/", 0), ("rank_0/attempt_1/", 0), ("host_node7/", None)]
    assert dict(zip(names, wanted, strict=True)) == prefixes
    assert 4 == run.hello.started


def test_the_only_rank_has_no_prefix_even_beside_the_devices_of_its_host(tmp_path: Path) -> None:
    recorded(narrow("w").good(), tmp_path)
    recorded(narrow("w").good(), tmp_path, role="host", host="node7")
    assert ["", "host_node7/"] == [stream.prefix for stream in load(tmp_path / RUN).streams]


def test_a_late_value_is_in_the_row_of_its_step_and_the_last_one_counts(tmp_path: Path) -> None:
    stream = warm(1200)
    for value in (3.5, 0.1):
        stream.frames.append(Event("values.logged", 700, stream.now, {"val_loss": value}))
    name = recorded(stream, tmp_path)
    rows = rows_of(load(tmp_path / RUN))
    assert 0.10000000149011612 == rows[name, 700]["val_loss"]
    assert_same(expected(stream.frames, name), rows)


def test_a_late_value_whose_row_is_lost_forms_a_row_of_its_own(tmp_path: Path) -> None:
    stream = narrow("w").good().good().event("values.logged", val_loss=2.5, scale=8.0)
    del stream.frames[2]
    name = recorded(stream, tmp_path)
    assert {"val_loss": 2.5} == rows_of(load(tmp_path / RUN))[name, 1]


def test_columns_that_join_later_and_tensors_of_one_name_keep_their_values(tmp_path: Path) -> None:
    stream = narrow("w", "w").good(stats={"grad.norm": [1.0, 2.0]})
    wider = msgspec.structs.replace(stream.schema, scalars=(*stream.schema.scalars, "step", "own"))
    stream.schema = wider
    stream.frames.append(Hello("run", "stream", wider, started=SECOND))
    stream.step(step=7.0, own=math.inf)
    name = recorded(stream, tmp_path)
    rows = rows_of(load(tmp_path / RUN))
    assert (1.0, 2.0) == (rows[name, 0]["grad.norm/w"], rows[name, 0]["grad.norm/w#2"])
    assert {"step#2": 7.0, "own": math.inf} == rows[name, 1]


def test_the_rows_do_not_depend_on_the_size_of_the_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = warm(50)
    name = recorded(stream, tmp_path)
    for rows in (1, 7, 500):
        monkeypatch.setattr(find, "MAX_ROWS", rows)
        assert_same(expected(stream.frames, name), rows_of(load(tmp_path / RUN)))


def test_rows_that_come_after_loading_are_left_for_the_next_export(tmp_path: Path) -> None:
    writer = Journal(tmp_path / RUN / "stream")
    stream = narrow("w").good().good()
    for frame in stream.frames:
        writer.hello(frame) if isinstance(frame, Hello) else writer.append(frame)
    run = load(tmp_path / RUN)
    for frame in Stream().good().frames[1:]:
        writer.append(frame)
    assert 2 == len(rows_of(run))
    writer.close()


def test_rows_that_are_deleted_while_they_are_read_end_the_export(tmp_path: Path) -> None:
    recorded(warm(20), tmp_path)
    run = load(tmp_path / RUN)
    for _, segment in journal.segments(run.streams[0].folder):
        segment.unlink()
    with pytest.raises(NoRows, match=r"20 rows of stream .* were deleted while they were read; read them again"):
        rows_of(run)


def test_lost_records_are_counted_by_reason(tmp_path: Path) -> None:
    stream = warm(5)
    stream.frames.append(Lost("disk-full", steps=3, events=1))
    recorded(stream, tmp_path)
    assert {"disk-full": {"steps": 3, "events": 1}} == load(tmp_path / RUN).streams[0].scan.lost


def test_signals_of_single_tensors_can_be_left_out(tmp_path: Path) -> None:
    recorded(warm(5), tmp_path)
    every, few = (set(load(tmp_path / RUN, tensors=tensors).signals) for tensors in (True, False))
    assert {"grad.norm/head.weight"} < every - few
    assert {"loss", "grad_norm"} < few
    assert not any("/" in name for name in few)


def test_a_run_without_a_step_says_so(tmp_path: Path) -> None:
    stream = Stream()
    stream.schema = Schema()
    recorded(stream, tmp_path)
    with pytest.raises(NoRows, match="has no recorded step yet"):
        load(tmp_path / RUN)
    shutil.rmtree(tmp_path / RUN)
    with pytest.raises(find.NoJournal):
        load(tmp_path / RUN)
