"""What a run that is over comes to, and that the fleet's counters say it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ammeter.verdicts.framework.finding import Finding
from ammeter_server.runs.outcomes import has_diverged, now_of, of_run, of_time, of_validation
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until

HOUR = 3600 * 10**9


def finding(verdict: str, severity: Any = "page", active: bool = True) -> Finding:
    return Finding(verdict, severity, 1, 2, 3, "why", "do", "It", active=active)


@pytest.mark.parametrize(
    ("findings", "losses", "diverged"),
    [
        ([], [0.5], False),
        ([], [], False),
        ([], [None], False),
        ([], ["NaN"], True),
        ([], [0.5, "Infinity"], True),
        ([], [math.nan], True),
        ([], [-math.inf], True),
        ([finding("nonfinite-weights")], [0.5], True),
        ([finding("nonfinite-weights", active=False)], [0.5], False),
        ([finding("nonfinite-gradient")], [0.5], True),
        ([finding("nonfinite-gradient", "ticket")], [0.5], False),
        ([finding("nonfinite-loss", "ticket")], [0.5], False),
        ([finding("scale-collapse")], [0.5], True),
        ([finding("run-stalled")], [0.5], False),
    ],
)
def test_a_run_has_diverged_where_its_numbers_are_not_finite_at_the_end(
    findings: list[Finding], losses: list[Any], diverged: bool
) -> None:
    assert diverged == has_diverged(findings, losses)


def test_how_its_processes_ended_comes_before_what_its_numbers_were() -> None:
    poisoned = [finding("nonfinite-weights")]
    assert "diverged" == of_run("ended", {"closed"}, poisoned, [])
    assert "failed" == of_run("ended", {"closed", "exception"}, poisoned, [])
    assert "failed" == of_run("ended", {"signal"}, [], [])
    assert "lost" == of_run("lost", {"lost"}, poisoned, ["NaN"])
    assert "ended" == of_run("ended", {"closed"}, [], [1.0])


def test_a_run_is_late_as_soon_as_it_is_and_in_time_once_it_is_over() -> None:
    tags = {"expected_hours": "2"}
    assert None is of_time(tags, HOUR, 2 * HOUR, over=False)
    assert "expected" == of_time(tags, HOUR, 3 * HOUR, over=True)
    assert "late" == of_time(tags, HOUR, 3 * HOUR + 1, over=False)
    for hours in ("", "soon", "-1", "nan", "inf", "0", "1e9", None):
        assert None is of_time({"expected_hours": hours}, HOUR, 90 * HOUR, over=True)
    assert None is of_time({}, HOUR, 90 * HOUR, over=True)


def test_a_validation_counts_where_it_was_held_against_a_baselines() -> None:
    drifted = [finding("validation-drift", "ticket")]
    assert None is of_validation({}, drifted)
    assert "held" == of_validation({"validation_delta": 0.01}, [])
    assert "drifted" == of_validation({"validation_delta": 0.3}, drifted)


def told(client: httpx.Client, metric: str, outcome: str) -> float:
    text = client.get("/metrics").text
    line = f'{metric}{{outcome="{outcome}",project="demo"}} '
    return next((float(row.removeprefix(line)) for row in text.splitlines() if row.startswith(line)), -1)


def test_a_run_that_is_nan_throughout_is_no_success(tmp_path: Path) -> None:
    runs = "ammeter_fleet_runs_total"
    with serving(tmp_path) as client:
        begin = time.time_ns() - 100 * STEP
        healthy, nan, skipped = (Stream(client, begin=begin, tags={"expected_hours": "1"}) for _ in range(3))
        train(healthy, 0, 60)
        for step in range(60):
            nan.tell(step, {"loss": math.nan, "applied": 1.0, "step_seconds": 0.1})
        train(skipped, 0, 20)
        break_down(skipped, 21, 60)
        for stream in (healthy, nan, skipped):
            stream.bye(60)
            stream.send()
        wait_until(lambda: told(client, runs, "ended") + told(client, runs, "diverged") == 3)
        assert (1, 2) == (told(client, runs, "ended"), told(client, runs, "diverged"))
        assert (0, 0) == (told(client, runs, "failed"), told(client, runs, "lost"))
        assert 3 == told(client, "ammeter_fleet_times_total", "expected")
        assert 0 == told(client, "ammeter_fleet_validations_total", "held")


def stream(started: int, reason: str | None, loss: float | str = 1.0, rank: int = 0) -> Any:
    return SimpleNamespace(rank=rank, started=started, bye_reason=reason, latest={"loss": loss})


@pytest.mark.parametrize(
    ("expected", "state", "counted", "ranks"),
    [
        ("running", "running", None, [stream(1, None)]),
        ("failed", "ended", "failed", [stream(1, "exception")]),
        ("ended", "ended", "failed", [stream(1, "exception"), stream(2, "closed")]),
        ("failed", "ended", "ended", [stream(1, "closed"), stream(2, "signal")]),
        ("lost", "lost", "ended", [stream(1, "closed"), stream(2, "lost")]),
        ("diverged", "ended", "diverged", [stream(1, "closed")]),
        ("diverged", "ended", "failed", [stream(1, "exception"), stream(2, "closed", "NaN")]),
        ("failed", "ended", None, [stream(1, "closed"), stream(1, "exception", rank=1)]),
    ],
)
def test_the_outcome_now_is_that_of_the_last_attempts(
    expected: str, state: str, counted: str | None, ranks: Any
) -> None:
    run: Any = SimpleNamespace(state=state, fleet_progress={"outcome": counted} if counted else {})
    assert expected == now_of(run, ranks)
