"""What has been delivered of a training, and what its run says of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.e2e import stored
from tests.e2e.processes import Collector, slowness, wait_for
from tests.e2e.training_process import Training, last_words

Deliveries = list[tuple[Collector, Training, stored.Rows]]
"""Trainings with the rows that their collector has received."""


def has_left(training: Training) -> None:
    wait_for(lambda: not training.shippers(), "the shipper has left", lambda: shipper_log(training))


def delivered_whole(collector: Collector, training: Training, deliveries: Deliveries) -> None:
    """What the collector holds is what the journal holds: every row, bit by bit, once, in order."""
    wait_for(
        lambda: collector.rows(training.run) == training.written(),
        "the collector has what the journal has",
        lambda: f"{steps_of(collector, training)}\n{collector.log()}\n{shipper_log(training)}",
    )
    deliveries.append((collector, training, training.written()))


def steps_of(collector: Collector, training: Training) -> str:
    have = {stream: [step for step, _ in rows] for stream, rows in collector.rows(training.run).items()}
    return f"collector: {have}; journal: {[len(rows) for rows in training.written().values()]} rows"


def shipper_log(training: Training) -> str:
    path = training.journals / training.run / "shipper.log"
    return path.read_text() if path.exists() else "no shipper.log"


def found_lost(collector: Collector, training: Training, died: float) -> None:
    """run-lost opened soon after the death, not when the stream was silent for long, and names the last step."""
    incident = wait_for(lambda: incident_of(collector, training, "run-lost"), "run-lost is open", collector.log)
    assert datetime.fromisoformat(incident["opened"]).timestamp() - died < 12 * slowness()
    (rows,) = training.written().values()
    last = rows[-1][0] if rows else -1
    assert last == incident["last_step"]
    assert "open" == incident["state"]
    assert last < 0 or f"last recorded step is {last}" in incident["cause"]
    bye = last_words(training)
    assert bye is not None
    assert ("lost", last) == (bye.reason, bye.step)


def run_in_state(collector: Collector, training: Training, state: str) -> dict[str, Any] | None:
    found: dict[str, Any] = collector.ask(f"/api/v1/runs/{training.run}")
    return found if found["state"] == state else None


def incident_of(collector: Collector, training: Training, verdict: str) -> dict[str, Any] | None:
    try:
        found = collector.ask(f"/api/v1/runs/{training.run}/incidents")["items"]
    except OSError:  # the run is not known yet
        return None
    return next((incident for incident in found if incident["verdict"] == verdict), None)
