"""A run at a receiver of OTLP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter.wire.frames import Hello, Schema
from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import STEPS, Rows, assert_same, export, recorded, refusal
from tests.agent.export.otlp_receiver import Receiver, attributes, receiving
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import SECOND, Stream, warm
from tests.parts import library

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    library("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with receiving() as receiver:
        yield receiver


def rows_of(receiver: Receiver) -> Rows:
    """The points by stream and step, under the names of the journal; the step is that with the same time."""
    steps = {
        (facts["service.instance.id"], point.time_unix_nano): point.as_int
        for facts, metric, point in receiver.points()
        if metric.name in ("ammeter.step", "ammeter.reading")
    }
    rows: Rows = {(stream, step): {} for (stream, _), step in steps.items()}
    for facts, metric, point in receiver.points():
        if metric.name not in ("ammeter.step", "ammeter.reading"):
            stream = facts["service.instance.id"]
            place = attributes(point.attributes)
            tensor = place.get("ammeter.tensor")
            name = metric.name.removeprefix("ammeter.")
            name = f"{name.removeprefix('tensor.')}/{tensor}" if tensor else name
            rows[stream, steps[stream, point.time_unix_nano]][name] = point.as_double
    return rows


def times_of(receiver: Receiver) -> dict[int, int]:
    """The time in ns of each step of a run with one stream."""
    steps = (point for _, metric, point in receiver.points() if metric.name == "ammeter.step")
    return {point.as_int: point.time_unix_nano for point in steps}


def test_ten_thousand_steps_arrive_complete_and_with_identical_values(
    receiver: Receiver, long: LongRun, capsys: pytest.CaptureFixture[str]
) -> None:
    written = export(capsys, long.path, "--to", "otlp", receiver.url)
    assert_same(long.rows, rows_of(receiver))
    assert (STEPS, long.values, long.values + STEPS) == (written["rows"], written["values"], written["points"])
    times = {
        point.as_int: point.time_unix_nano for _, metric, point in receiver.points() if metric.name == "ammeter.step"
    }
    assert long.times == [times[step] for step in range(STEPS)]
    assert receiver.largest < 4 * 2**20


def test_the_resource_names_the_process_and_the_run(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = recorded(warm(3), tmp_path, name="fp16", project="lm", rank=2)
    export(capsys, tmp_path / RUN, "--to", "otlp", receiver.url)
    facts, _, point = next(receiver.points())
    assert {
        "service.name": "lm",
        "service.instance.id": stream,
        "host.name": "node7",
        "process.pid": 4711,
        "ammeter.run.id": RUN,
        "ammeter.run.name": "fp16",
    } == facts
    assert {"ammeter.rank": 2} == attributes(point.attributes)


def test_devices_have_the_names_of_the_semantic_conventions(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream()
    readings: dict[str, float] = {
        "utilization": 0.5,
        "memory_used_bytes": 2.0**30,
        "power_watts": 300.0,
        "temperature_celsius": 60.0,
    }
    stream.schema = Schema(scalars=tuple(f"{name}.1" for name in readings))
    stream.frames = [Hello("run", "stream", stream.schema, role="host", host="node7", started=SECOND)]
    stream.event("devices.found", devices=[{"gpu": "1", "uuid": "GPU-604a", "model": "H100"}])
    values: dict[str, Any] = {f"{name}.1": value for name, value in readings.items()}
    recorded(stream.step(**values), tmp_path)
    export(capsys, tmp_path / RUN, "--to", "otlp", receiver.url)
    found = {
        metric.name: (point.as_double, metric.unit, metric.WhichOneof("data"), attributes(point.attributes))
        for _, metric, point in receiver.points()
    }
    device = {"hw.id": "GPU-604a", "hw.name": "GPU 1", "hw.model": "H100"}
    assert (0.5, "1", "gauge", device) == found["hw.gpu.utilization"]
    assert (2.0**30, "By", "sum", device) == found["hw.gpu.memory.usage"]
    assert (300.0, "W", "gauge", device | {"hw.type": "gpu"}) == found["hw.power"]
    assert (60.0, "Cel", "gauge", device | {"hw.type": "gpu"}) == found["hw.temperature"]


def test_names_that_opentelemetry_refuses_are_attributes(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream()
    stream.schema = Schema(scalars=("loss@gan.py:41", "top 1 %", "step_seconds"))
    stream.frames = [Hello("run", "stream", stream.schema, started=SECOND)]
    values: dict[str, Any] = {"loss@gan.py:41": 1.0, "top 1 %": 2.0, "step_seconds": 0.5}
    recorded(stream.step(**values), tmp_path)
    export(capsys, tmp_path / RUN, "--to", "otlp", receiver.url)
    found = {metric.name: (metric.unit, attributes(point.attributes)) for _, metric, point in receiver.points()}
    assert ("", {"ammeter.rank": 0, "ammeter.line": "gan.py:41"}) == found["ammeter.loss"]
    assert ("", {"ammeter.rank": 0, "ammeter.signal": "top 1 %"}) == found["ammeter.top_1__"]
    assert "s" == found["ammeter.step_seconds"][0]


@pytest.mark.parametrize(("traceparent", "ended"), [(f"00-{TRACE}-{SPAN}-01", "exit"), ("", "exception")])
def test_each_rank_is_a_span_below_the_one_that_started_it(
    traceparent: str, ended: str, receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = warm(20)
    stream.bye(ended)
    recorded(stream, tmp_path, rank=1, environment={"traceparent": traceparent} if traceparent else {})
    for _ in range(2):
        export(capsys, tmp_path / RUN, "--to", "otlp", receiver.url)
    first, again = receiver.spans()
    assert first == again
    assert ("ammeter.training", SPAN if traceparent else "") == (first.name, first.parent_span_id.hex())
    assert (first.trace_id.hex() == TRACE) == bool(traceparent)
    assert {"ammeter.rank": 1, "ammeter.steps": 20, "ammeter.ended": ended} == attributes(first.attributes)
    times = times_of(receiver)
    assert first.start_time_unix_nano <= times[0]
    assert times[19] == first.end_time_unix_nano
    assert ((1, "") if ended == "exit" else (2, ended)) == (first.status.code, first.status.message)


def test_events_and_findings_are_logs_at_their_times_in_the_trace_of_the_training(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = warm(100)
    for _ in range(60):
        stream.bad(65536.0, last=2)
    recorded(stream, tmp_path, environment={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    written = export(capsys, tmp_path / RUN, "--to", "otlp", receiver.url)
    records = receiver.records()
    assert (written["logs"], {TRACE}, {SPAN}) == (
        len(records),
        {record.trace_id.hex() for record in records},
        {record.span_id.hex() for record in records},
    )
    skipped = [record for record in records if record.event_name == "ammeter.step.skipped"]
    assert [*range(100, 160)] == [attributes(record.attributes)["ammeter.step"] for record in skipped]
    assert {"scale": 65536.0, "consecutive": 1} == json.loads(attributes(skipped[0].attributes)["ammeter.data"])
    found = {
        attributes(record.attributes)["ammeter.verdict"]: record
        for record in records
        if record.event_name == "ammeter.finding"
    }
    finding = found["nonfinite-gradient"]
    place = attributes(finding.attributes)
    times = {
        point.as_int: point.time_unix_nano for _, metric, point in receiver.points() if metric.name == "ammeter.step"
    }
    assert ("ERROR", times[place["ammeter.opened_step"]]) == (finding.severity_text, finding.time_unix_nano)
    assert "NaN" in finding.body.string_value
    assert len(found) == written["findings"]


def test_a_receiver_that_refuses_ends_the_export_with_what_was_sent(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(warm(20), tmp_path)
    receiver.status = 400
    said = refusal(capsys, tmp_path / RUN, "--to", "otlp", receiver.url)
    assert f"{receiver.url} did not accept a request; the reason is above. Before it, 0 points" in said


def test_a_target_that_is_no_url_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    recorded(warm(3), tmp_path)
    said = refusal(capsys, tmp_path / RUN, "--to", "otlp", "localhost:4318")
    assert "'localhost:4318' is not the URL of an OTLP receiver; use one such as http://localhost:4318" in said
