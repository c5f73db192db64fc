"""The report says how gradients are reduced over ranks."""

from __future__ import annotations

from typing import Any

from ammeter.report.run_summary import run_of, summary_of
from ammeter.report.stream_summary import MAX_REDUCTIONS, StreamSummary
from ammeter.report.terminal.facts import facts
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import views


def call(**more: Any) -> dict[str, Any]:
    usual = {"op": "all_reduce", "dtype": "bfloat16", "phase": "backward", "ranks": 2, "calls": 4, "bytes": 4752}
    return usual | more


def summary(*calls: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The summary of a run with these calls, and the lines of its report."""
    stream: Stream = warm(3)
    read = StreamSummary("stream")
    for part in views(stream.event("collectives.census", calls=list(calls), sharded=False).good().frames):
        read.add(part)
    numbers = summary_of([read])
    return numbers, dict(facts(run_of([read]), numbers, None))


def test_a_line_has_call_dtype_ranks_and_bytes() -> None:
    _, lines = summary(call(), call(dtype="float32", bytes=2_500_000))
    assert (
        "all_reduce in float32 over 2 ranks, 2.5 MB per step; all_reduce in bfloat16 over 2 ranks, 4.75 kB per step"
        == lines["reductions"]
    )


def test_gathered_weights_and_sums_of_activations_are_no_reduction_of_gradients() -> None:
    numbers, lines = summary(call(op="all_gather_single"), call(phase="forward"), call(phase="step"))
    assert "reductions" not in numbers.keys() | lines.keys()


def test_kinds_are_bounded_and_those_with_most_bytes_come_first() -> None:
    numbers, _ = summary(*(call(ranks=ranks, bytes=ranks) for ranks in range(2, 30)))
    assert list(range(29, 29 - MAX_REDUCTIONS, -1)) == [kind["ranks"] for kind in numbers["reductions"]]
