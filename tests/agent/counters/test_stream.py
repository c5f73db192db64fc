"""The counters of a stream do not depend on its division, and the report and a run have the same ones."""

from __future__ import annotations

from typing import Any

import pytest

from ammeter.counters.run import losses_of, of_run
from ammeter.counters.stream import MAX_REASONS, SUMS, add_losses, advance, precision
from ammeter.report.run_summary import COUNTS, summary_of
from ammeter.report.stream_summary import StreamSummary
from ammeter.wire.frames import Lost
from tests.agent import streams_kernels  # noqa: F401 - registers its streams
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import views
from tests.agent.streams import BROKEN, HEALTHY

STREAMS = {**HEALTHY, **BROKEN}


def counted(stream: Stream, *cuts: int) -> tuple[dict[str, Any], str | None]:
    """The counters and the precision of a stream that is cut before the frames with these indices."""
    counters: dict[str, Any] = {}
    dtype: str | None = None
    for view in views(stream.frames, cuts):
        counters, dtype = advance(counters, view), precision(dtype, view)
    return counters, dtype


@pytest.mark.parametrize("name", STREAMS)
def test_counters_are_the_same_for_every_division_of_a_stream(name: str) -> None:
    counters, dtype = counted(STREAMS[name]())
    for cuts in ((1,), (5, 6, 31), tuple(range(0, 400, 9))):
        divided, other_dtype = counted(STREAMS[name](), *cuts)
        assert dtype == other_dtype
        assert {counter: pytest.approx(value) for counter, value in counters.items()} == divided


@pytest.mark.parametrize("name", STREAMS)
def test_the_report_counts_what_the_collector_counts(name: str) -> None:
    stream = STREAMS[name]()
    summary = StreamSummary("a")
    for view in views(stream.frames, (11, 40)):
        summary.add(view)
    report = summary_of([summary])
    of_collector = of_run([(0, counted(stream)[0])])
    assert {counter: of_collector[counter] for counter in COUNTS} == {
        counter: report[key] for counter, key in COUNTS.items()
    }


def test_skipped_and_applied_steps_and_changes_of_the_scale_are_counted() -> None:
    stream = warm(10).event("scaler.growth", **{"from": 1.0, "to": 2.0})
    for _ in range(3):
        stream.step(scale=2.0, skipped=1, found_inf=1, grad_norm=float("inf"))
    counters, dtype = counted(stream.event("scaler.backoff"))
    named = ("steps", "applied", "skipped", "overflow_events", "nonfinite_steps", "growths", "backoffs")
    assert (13, 10, 3, 3, 3, 1, 1) == tuple(counters[counter] for counter in named)
    assert 3 == counters["consecutive_skipped"]
    assert "float16" == dtype


AUTOCAST = ("autocast.entered", {"device": "cpu", "dtype": "bfloat16", "grad": True})


@pytest.mark.parametrize(
    ("events", "dtype"),
    [
        ([], "float32"),
        ([("weights.census", {"trainable": {"float64": 9}})], "float64"),
        ([("weights.census", {"trainable": {"bfloat16": 90, "float32": 5}})], "bfloat16"),
        ([("weights.census", {"trainable": {"float64": 9}}), AUTOCAST], "bfloat16"),
        ([AUTOCAST, ("weights.census", {"trainable": {"float32": 9}})], "bfloat16"),
        ([("weights.census", {"trainable": {"float64": "many"}})], "float32"),
        ([("weights.census", {})], "float32"),
    ],
)
def test_without_autocast_the_precision_is_that_of_most_weights(events: Any, dtype: str) -> None:
    stream = Stream()
    for name, data in events:
        stream.event(name, **data)
    for _ in range(3):
        stream.step(loss=1.0)
    assert dtype == counted(stream)[1] == counted(stream, *range(1, 6))[1]


def test_attempts_of_a_rank_add_up_and_the_largest_rank_counts() -> None:
    first, second = (counted(warm(steps))[0] for steps in (10, 25))
    assert 35 == of_run([(0, first), (0, second)])["steps"]
    totals = of_run([(0, first), (1, second)])
    assert 25 == totals["steps"]
    assert first["samples"] + second["samples"] == totals["samples"]
    assert sum(second["grad_norm_histogram"]) == sum(totals["grad_norm_histogram"])
    assert set(SUMS) <= set(of_run([(0, {})]))


def test_lost_records_are_added_by_reason_and_reasons_are_limited() -> None:
    lost = add_losses({}, [Lost("journal-cap", 7, 2), Lost("journal-cap", 1, 0)])
    assert {"journal-cap": {"steps": 8, "events": 2}} == lost
    assert {"journal-cap": {"steps": 16, "events": 4}} == losses_of([lost, lost])
    many = add_losses(lost, [Lost(f"reason {number}", 1) for number in range(2 * MAX_REASONS)])
    assert MAX_REASONS + 1 == len(many)
    assert 8 + 2 * MAX_REASONS == sum(counts["steps"] for counts in many.values())
