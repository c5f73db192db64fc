"""Whether a project is ready for production: what its runs have shown, and what nobody has tried yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ammeter.verdicts.baseline.validation_drift import DEFAULT_DELTA
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.run_comparison import RunComparison, parse_share
from ammeter.verdicts.framework.run_history import declared_metrics
from ammeter_server.config.links import Links
from ammeter_server.curves.run_histories import history_of
from ammeter_server.db import Row, Store
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import events, incidents, runs
from ammeter_server.runs import outcomes
from ammeter_server.runs.baselines import Baseline, find_baseline
from ammeter_server.runs.rank_totals import precision

MAX_RUNS = 20
"""The newest runs of the project that are searched: older ones say little about the program of today."""

MAX_EVENTS = 200
"""Events of one name that are read of a run, the newest: the files of its last checkpoint."""

LOW_PRECISION = ("float16", "bfloat16")

SOURCES = {"run": "named by the run", "name": "pinned for its name", "project": "pinned for the project"}


@dataclass(frozen=True)
class ReadinessLine:
    """One check.

    Attributes:
        found: What was found, or that nothing was.
        run: The run in which it was found, or that lacks it; null without one.
        link: Its page; empty without a run.
        todo: What to do; empty if the check passed.
    """

    name: str
    ready: bool
    found: str
    todo: str
    run: str | None = None
    link: str = ""


@dataclass(frozen=True)
class Readiness:
    """ready: every check has passed. candidate: the run that is judged; null without one."""

    project: str
    ready: bool
    candidate: str | None
    lines: list[ReadinessLine]


def readiness(store: Store, links: Links, project: str) -> Readiness:
    """Checks the newest run in low precision that ended well, and the newest runs beside it."""
    seen = _read(store, links, project)
    lines = [
        _baseline_line(seen),
        _precision_line(store, seen),
        _checkpoint_line(store, seen),
        _restore_line(store, seen),
        _profile_line(store, seen),
        _pages_line(store, seen),
    ]
    candidate = seen.candidate.id if seen.candidate is not None else None
    return Readiness(project, all(line.ready for line in lines), candidate, lines)


@dataclass(frozen=True)
class _Seen:
    """candidate: the newest run in low precision that ended well. precisions: of the runs, by their ids."""

    links: Links
    rows: Sequence[Row[Any]]
    candidate: Row[Any] | None
    baseline: Baseline | None
    precisions: dict[str, str | None] = field(default_factory=dict)

    @property
    def subject(self) -> Row[Any]:
        """The candidate, else the newest run."""
        return self.candidate if self.candidate is not None else self.rows[0]

    def line(self, name: str, run: Row[Any] | None, found: str, todo: str = "") -> ReadinessLine:
        if run is None:
            return ReadinessLine(name, not todo, found, todo)
        return ReadinessLine(name, not todo, found, todo, run.id, self.links.run(run.id))


def _read(store: Store, links: Links, project: str) -> _Seen:
    with store.reading() as connection:
        rows = runs.of_project(connection, project, limit=MAX_RUNS)
        ranks: dict[str, list[Row[Any]]] = {}
        for stream in runs.streams_of(connection, [row.id for row in rows]):
            if stream.role == "rank":
                ranks.setdefault(stream.run, []).append(stream)
        precisions = {row.id: precision(ranks.get(row.id, [])) for row in rows}
        low = (row for row in rows if precisions[row.id] in LOW_PRECISION)
        candidate = next((row for row in low if outcomes.now_of(row, ranks.get(row.id, [])) == "ended"), None)
        baseline = find_baseline(connection, candidate if candidate is not None else rows[0])
        if baseline is not None and baseline.row.id not in precisions:
            streams = runs.streams_of(connection, [baseline.row.id])
            precisions[baseline.row.id] = precision([stream for stream in streams if stream.role == "rank"])
    return _Seen(links, rows, candidate, baseline, precisions)


def _baseline_line(seen: _Seen) -> ReadinessLine:
    if seen.baseline is None:
        todo = "Train in float32 once, and pin that run: ammeter baseline pin RUN --collector."
        return seen.line("baseline", None, f"{_name(seen.subject)} names no baseline, and none is pinned", todo)
    row, dtype = seen.baseline.row, seen.precisions.get(seen.baseline.row.id)
    found = f"{_name(row)}, {SOURCES[seen.baseline.source]}, {dtype or 'of unknown precision'}, {row.state}"
    if dtype != "float32":
        return seen.line("baseline", row, found, "Pin a run that trained in float32.")
    if row.state != "ended":
        return seen.line("baseline", row, found, "Pin a run that has ended by itself.")
    return seen.line("baseline", row, found)


def _precision_line(store: Store, seen: _Seen) -> ReadinessLine:
    """A run in low precision whose validation holds against its float32 run."""
    run = seen.candidate
    if run is None:
        found = f"none of the newest {wording.count(len(seen.rows), 'run')} has ended well in float16 or bfloat16"
        return seen.line("mixed precision", None, found, "Train once with autocast, to the end.")
    dtype = seen.precisions[run.id]
    if seen.baseline is None:
        found, todo = f"{_name(run)} in {dtype} has no float32 run", "Pin its float32 run, see baseline."
        return seen.line("mixed precision", run, found, todo)
    other = seen.baseline.row
    metrics = sorted({name for row in (run, other) for name in declared_metrics(row.tags)})
    own, base = (history_of(store, row, metrics) for row in (run, other))
    delta = parse_share(run.tags.get("validation_delta"))
    pair = RunComparison(own, base, delta=delta)
    head = f"{_name(run)} in {dtype} against {_name(other)}"
    if reason := pair.exclusion("validation"):
        return seen.line(
            "mixed precision", run, f"{head}: {reason}", "Repeat one of the two with the settings of the other."
        )
    if pair.worst is None:
        return seen.line(
            "mixed precision", run, f"{head}: no step at which both were validated", "Log val_loss in both."
        )
    limit = DEFAULT_DELTA if delta is None else delta
    speed = f", {1 / pair.speed.ratio:.2f} times as fast" if pair.speed is not None else ""
    share = f"{100 * abs(pair.worst.delta):.2f} % {'worse' if pair.worst.delta > 0 else 'better'}"
    found = f"{head}: {pair.worst.metric} at step {pair.worst.step} is {share}, at most {100 * limit:g} % worse{speed}"
    todo = "" if pair.worst.delta <= limit else "Follow the runbook of validation-drift."
    return seen.line("mixed precision", run, found, todo)


def _checkpoint_line(store: Store, seen: _Seen) -> ReadinessLine:
    """All files that were saved at the last step together are the last checkpoint."""
    run = seen.subject
    saved = _events(store, run, "checkpoint.saved")
    if not saved:
        todo = "Save a checkpoint in the training, with model, optimizer, scaler and step."
        return seen.line("last checkpoint", run, f"{_name(run)} has saved none that was seen", todo)
    last = [event for event in saved if event.stream == saved[0].stream and event.step == saved[0].step]
    missing = set.intersection(*({*map(str, event.data.get("missing") or ())} for event in last))
    found = (
        f"{_name(run)}, step {saved[0].step}, {instant(saved[0].time)}: {last[0].data.get('path') or 'without a path'}"
    )
    if missing:
        lacks = wording.listed(sorted(missing))
        return seen.line("last checkpoint", run, f"{found}, without {lacks}", f"Save {lacks} with it.")
    return seen.line("last checkpoint", run, f"{found}, complete")


def _restore_line(store: Store, seen: _Seen) -> ReadinessLine:
    """A checkpoint that the guard has read back, or from which a run has resumed."""
    for run in seen.rows:
        for event in _events(store, run, "checkpoint.verified", "checkpoint.restored"):
            found = f"{_name(run)}, step {event.step}: {event.data.get('path') or 'a checkpoint'}"
            if event.name == "checkpoint.restored" and event.data.get("fits"):
                return seen.line("restore", run, f"{found} was loaded, with all trained weights")
            outcome = event.data.get("outcome")
            if outcome == "passed":
                return seen.line("restore", run, f"{found} was read back and is complete")
            if outcome in ("partial", "failed"):
                reason = event.data.get("reason") or outcome
                return seen.line("restore", run, f"{found} could not be restored: {reason}", "Save it again, and try.")
    todo = "Resume a run from a checkpoint once, or watch with guards=[Checkpoint(restore=True)]."
    return seen.line("restore", None, f"no restore in the newest {wording.count(len(seen.rows), 'run')}", todo)


def _profile_line(store: Store, seen: _Seen) -> ReadinessLine:
    for run in seen.rows:
        for event in _events(store, run, "kernels.profiled"):
            if event.data.get("steps"):
                steps = wording.count(int(event.data["steps"]), "step")
                return seen.line("profile", run, f"{_name(run)}, {steps} from step {event.step}")
    todo = "Run once under `ammeter run --profile`."
    return seen.line("profile", None, f"no profile in the newest {wording.count(len(seen.rows), 'run')}", todo)


def _pages_line(store: Store, seen: _Seen) -> ReadinessLine:
    run = seen.subject
    with store.reading() as connection:
        rows = incidents.newest(connection, 1, None, run=run.id, states=("open", "acknowledged"), severity="page")
    if rows:
        return seen.line("pages", run, f"{_name(run)}: {rows[0].title or rows[0].verdict} is open", rows[0].fix)
    return seen.line("pages", run, f"{_name(run)} has no open page")


def _events(store: Store, run: Row[Any], *names: str) -> Sequence[Row[Any]]:
    """The newest events first."""
    with store.reading() as connection:
        found, _ = events.newest(connection, run.id, MAX_EVENTS, None, names)
    return found


def _name(run: Row[Any]) -> str:
    return str(run.name or run.id)
