"""Writes a record of a run for a model registry: what trained the model, in which precision, and what went wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ammeter._version import __version__
from ammeter.export.new_target import new_file
from ammeter.export.written import Written
from ammeter.recorded.recorded_run import RecordedRun
from ammeter.report.diagnosis import diagnose
from ammeter.wire import printable
from ammeter.wire.frames import Event

MAX_SCALE_CHANGES = 1000
"""Last changes of the loss scale that a record has; their number is always there."""

CHUNK_BYTES = 2**22

OF_SUMMARY = (
    *("steps", "applied", "skipped", "nonfinite_steps", "scale", "loss", "losses", "val_loss"),
    "low_precision_share",
)
"""Members of the report's summary that a record repeats."""

OF_FINDING = ("verdict", "severity", "title", "first_step", "last_step", "active", "cause", "fix")


def write(written: Written) -> None:
    """Writes the file. The rows of the run are not in it."""
    document = record_of(written.run)
    with new_file(written.target, written.force) as draft:
        draft.write_text(printable.json(document) + "\n", encoding="utf-8")
    written.details = {"findings": len(document["findings"]), "checkpoints": len(document["checkpoints"])}


def record_of(run: RecordedRun) -> dict[str, Any]:
    """Returns the record as values for JSON."""
    report = diagnose(run.path).as_json()
    environment = run.hello.environment
    changes = list(_scale_changes(run))
    return {
        "format": "ammeter.record/1",
        "ammeter_version": __version__,
        "run": report["run"],
        "commit": environment.get("git_commit") or None,
        "environment": environment,
        "precision": report["run"]["precision"],
        "summary": {name: report["summary"].get(name) for name in OF_SUMMARY},
        "scaler": {"changes": len(changes), "last_changes": changes[-MAX_SCALE_CHANGES:]},
        "findings": [{name: finding.get(name) for name in OF_FINDING} for finding in report["findings"]],
        "not_judged": [entry["verdict"] for entry in report["summary"]["not_judged"]],
        "checkpoints": _checkpoints(run),
        "lost_records": {stream.hello.stream: stream.scan.lost for stream in run.streams if stream.scan.lost},
    }


def _events(run: RecordedRun, *names: str) -> Iterator[tuple[int, Event]]:
    """Yields (rank, event) of the ranks."""
    for stream in run.streams:
        if stream.rank is not None:
            yield from ((stream.rank, event) for event in run.events(stream) if event.name in names)


def _scale_changes(run: RecordedRun) -> Iterator[dict[str, Any]]:
    """Yields the changes of the loss scale of the first rank, which all ranks share."""
    first = min((stream.rank for stream in run.streams if stream.rank is not None), default=0)
    for rank, event in _events(run, "scaler.growth", "scaler.backoff"):
        if rank == first:
            yield {"step": event.step, "from": event.data.get("from"), "to": event.data.get("to")}


def _checkpoints(run: RecordedRun) -> list[dict[str, Any]]:
    """Returns the last save of each path, with the hash of the file if it is still there as it was written."""
    saved: dict[str, dict[str, Any]] = {}
    for rank, event in _events(run, "checkpoint.saved"):
        path = str(event.data.get("path") or "")
        if path:
            facts = {name: event.data.get(name) for name in ("bytes", "contents", "missing")}
            saved[path] = {"path": path, "step": event.step, "rank": rank, **facts}
    return [{**save, "sha256": _hash(Path(path), save["bytes"])} for path, save in saved.items()]


def _hash(path: Path, size: Any) -> str | None:
    """Returns the SHA-256 of a file, None if it is no file of this machine or has another size by now."""
    try:
        if not path.is_file() or path.stat().st_size != size:
            return None
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()
    except OSError:
        return None
