"""Summarizes a run from the summaries of its streams. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np

from ammeter.counters import run as run_counters
from ammeter.counters.readings import HISTORY
from ammeter.report import overhead
from ammeter.report.column_summary import ColumnSummary
from ammeter.report.event_text import checkpoint
from ammeter.report.overhead import share
from ammeter.report.stream_summary import MAX_SENTENCES, StreamSummary
from ammeter.wire.frames import IMPORTED, NO_TIMES, Hello, Schema
from ammeter.wire.ranks import lives

COUNTS = {
    "steps": "steps",
    "applied": "applied",
    "skipped": "skipped",
    "growths": "scale_growths",
    "backoffs": "scale_backoffs",
}
"""Counter -> key in the summary."""

GRAVITY = ("closed", "exit", "signal", "exception", "lost")
"""Reasons of final records, the gravest last."""

_NO_SCALE = "_scale is None"
"""torch's error text when scaler.step() or update() is called before scale()."""

_SCALE = "call scaler.scale(loss).backward()"
_LATE = "watch() came after the training: call it before the loop"
_RESUMED = "the optimizer had a state already when watch() was called, so it was resumed, or "
_MAY_BE = (
    "an optimizer steps, but not one that watch() was given: call it when all are made, with all that step as a list",
    "optimizer.step() is never called in the process that called watch(), or it ended before the first one",
    f"scaler.step() came without scaler.scale(), raised, and the program caught that: {_SCALE}",
)


def run_of(streams: Sequence[StreamSummary]) -> dict[str, Any]:
    """Returns the identity, environment, state and end of a run from its streams."""
    ranks = [stream for stream in streams if stream.is_rank] or list(streams)
    first = next((stream.hello for stream in ranks if stream.hello), None) or Hello("", "", Schema())
    replaced = continued(ranks)
    present = [stream for stream in ranks if stream.stream not in replaced]
    newest = max(present, key=lambda stream: stream.last_step, default=StreamSummary(""))
    has_times = first.environment.get("imported_times") != NO_TIMES
    return {
        "id": first.run,
        "name": first.name,
        "project": first.project,
        "state": state_of(present),
        "started": instant(min((stream.first_time for stream in ranks), default=0)) if has_times else None,
        "ended": _end_of(ranks) if has_times and state_of(present) != "running" else None,
        "last_step": newest.last_step if newest.last_step >= 0 else None,
        "last_step_time": instant(newest.last_step_time),
        "goodbye": _goodbye(present),
        "lives": [_attempt(attempt) for attempt in _attempts(ranks)] if replaced else [],
        "world_size": first.world_size,
        "ranks_reporting": len({stream.rank for stream in ranks}),
        "precision": next((stream.precision for stream in ranks if stream.precision), None),
        "torch_version": first.environment.get("torch"),
        "device_model": first.environment.get("device"),
        "host": first.host,
        "command": first.environment.get("command"),
        **({"imported": _import_of(first)} if IMPORTED in first.environment else {}),
        "config": first.config,
        "tags": first.tags,
    }


def summary_of(streams: Sequence[StreamSummary], norm_of_shards: ColumnSummary | None = None) -> dict[str, Any]:
    """Returns the numbers of the run, with the attempts of each rank added up.

    Series come from the lowest rank, each count from the rank with the highest one, and lost records from all ranks.
    norm_of_shards: the gradient norm of all shards, for sharded ranks. `grad_norm_of` is `run` or names the rank.
    """
    ranks = _ranks(streams) or [[StreamSummary("")]]
    totals = run_counters.numbers_of_run([(stream.rank, stream.counters) for rank in ranks for stream in rank])
    seconds = max(sum(stream.last_time - stream.first_time for stream in rank) / 1e9 for rank in ranks)
    lead = ranks[0]
    step_seconds = [duration for stream in lead for duration in stream.step_seconds]
    return {
        **{key: totals[name] for name, key in COUNTS.items()},
        **_unknown_outcomes(lead),
        "nonfinite_steps": max(sum(stream.nonfinite_steps for stream in rank) for rank in ranks),
        **_columns(lead, norm_of_shards),
        "seconds": round(seconds, 3),
        **overhead.summary_of([stream.overhead for stream in lead], seconds),
        "calls_followed_share": share(
            sum(stream.followed for stream in lead), sum(stream.followable for stream in lead)
        ),
        "step_seconds": float(np.median(step_seconds)) if step_seconds else None,
        "seconds_per_epoch": next((epoch for stream in reversed(lead) if (epoch := stream.seconds_per_epoch)), None),
        "checkpoint_restores": dict(sorted(sum((stream.restores for stream in lead), Counter[str]()).items())),
        **({"reductions": lead[-1].reductions} if lead[-1].reductions else {}),
        "lost": run_counters.losses_of(stream.lost for stream in streams),
        "no_step": unstepped(streams),
    }


def _unknown_outcomes(lead: Sequence[StreamSummary]) -> dict[str, None]:
    """Returns None for the counts that an imported history does not have: of outcomes, and of changes of the scale."""
    readings = [stream.counters.get("readings", {}) for stream in lead]
    if not any(HISTORY in counts for counts in readings):
        return {}
    unknown = [name for name in ("applied", "skipped") if not any(counts.get(name) for counts in readings)]
    return dict.fromkeys([*unknown, COUNTS["growths"], COUNTS["backoffs"]])


def _import_of(hello: Hello) -> dict[str, str]:
    """Returns what an imported run says of its history."""
    facts = {name: hello.environment.get(f"imported_{name}", "") for name in ("source", "with", "columns")}
    return {"from": hello.environment[IMPORTED], **facts}


def _columns(lead: Sequence[StreamSummary], norm_of_shards: ColumnSummary | None) -> dict[str, Any]:
    """Returns the summaries of the columns of a rank's attempts."""
    columns = {name: _joined(stream.columns[name] for stream in lead) for name in lead[0].columns}
    scale, norm = columns.pop("scale"), columns.pop("grad_norm")
    sharded = any(stream.sharded for stream in lead)
    merged = norm_of_shards if sharded and norm_of_shards and norm_of_shards.first is not None else None
    losses = dict.fromkeys(name for stream in lead for name in stream.losses)
    return {
        "scale": scale.as_json() if scale.first is not None else None,
        "losses": {
            name: _joined(stream.losses[name] for stream in lead if name in stream.losses).as_json() for name in losses
        },
        "grad_norm": (merged or norm).as_json(),
        "grad_norm_of": "run" if merged or not sharded else f"rank {lead[0].rank}",
        **{name: column.as_json() for name, column in columns.items()},
    }


def unstepped(streams: Sequence[StreamSummary]) -> list[str]:
    """Returns why the run has no step: the known cause, else possible causes, likeliest first."""
    ranks = [stream for stream in streams if stream.is_rank]
    if any(stream.steps for stream in ranks):
        return []
    byes = [stream.bye for stream in ranks if stream.bye]
    if any(stream.unscaled for stream in ranks) or any(_NO_SCALE in bye.message for bye in byes):
        return [f"scaler.step() came before any scaler.scale(), and raised: {_SCALE}"]
    raised = [f"the program raised before its first step: {bye.message}" for bye in byes if bye.reason == "exception"]
    late = (_RESUMED if any(stream.state_at_first for stream in ranks) else "") + _LATE
    return [*raised[:1], late, *_MAY_BE]


def seen_in(streams: Sequence[StreamSummary]) -> list[dict[str, Any]]:
    """Returns the sentences on events by step, each with the verdict that covers it.

    A sentence that several ranks share appears once. If one checkpoint is complete, the others count as exports, which
    need not be complete.
    """
    unique: dict[tuple[Any, ...], dict[str, Any]] = {}
    complete = any(not saved.missing for stream in streams for saved in stream.checkpoints.values())
    for stream in streams:
        for entry in stream.sentences.values():
            unique.setdefault((entry["event"], entry["caller"], entry["said"]), entry)
        for (_, step), saved in stream.checkpoints.items():
            if text := checkpoint(saved.path, () if complete else saved.missing, saved.exposed):
                entry = {"event": "checkpoint.saved", "step": step, "rank": stream.rank, "caller": None, "said": text}
                entry["verdict"] = "checkpoint-exposed" if saved.exposed else "checkpoint-incomplete"
                unique.setdefault((frozenset(saved.missing), frozenset(saved.exposed)), entry)
    return sorted(unique.values(), key=lambda entry: entry["step"])[:MAX_SENTENCES]


def state_of(ranks: Sequence[StreamSummary]) -> str:
    """`running` while a process is alive, `lost` if one wrote no final record, else `ended`."""
    states = {stream.state for stream in ranks}
    return next((state for state in ("running", "lost") if state in states), "ended")


def continued(streams: Sequence[StreamSummary]) -> set[str]:
    """Returns the streams that a restart continued.

    Their end is not the end of the run.
    """
    attempts = _attempts([stream for stream in streams if stream.is_rank])
    streams_before: set[str] = set()
    for at, attempt in enumerate(attempts):
        for stream in attempt:
            ended = stream.life.ended
            if ended is not None and any(ended <= other.life.began for later in attempts[at + 1 :] for other in later):
                streams_before.add(stream.stream)
    return streams_before


def instant(nanoseconds: int) -> str | None:
    """Formats as RFC 3339 in UTC; None for an unknown time."""
    if not nanoseconds:
        return None
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _end_of(streams: Sequence[StreamSummary]) -> str | None:
    return instant(max((stream.last_time for stream in streams), default=0))


def _goodbye(ranks: Sequence[StreamSummary]) -> str | None:
    """Returns the gravest final record of the ranks as text."""
    byes = [stream.bye for stream in ranks if stream.bye is not None]
    gravest = max(byes, key=lambda bye: GRAVITY.index(bye.reason), default=None)
    if gravest is None:
        return None
    return f"{gravest.reason}: {gravest.message}" if gravest.message else gravest.reason


def _attempts(ranks: Sequence[StreamSummary]) -> list[list[StreamSummary]]:
    """Groups the streams by attempt of the run, ordered by rank."""
    by_name = {stream.stream: stream for stream in ranks}
    return [[by_name[life.stream] for life in attempt] for attempt in lives(stream.life for stream in ranks)]


def _attempt(streams: Sequence[StreamSummary]) -> dict[str, Any]:
    return {
        "started": instant(min(stream.first_time for stream in streams)),
        "ended": _end_of(streams) if state_of(streams) != "running" else None,
        "last_step": max(stream.last_step for stream in streams),
        "state": state_of(streams),
        "goodbye": _goodbye(streams),
    }


def _ranks(streams: Sequence[StreamSummary]) -> list[list[StreamSummary]]:
    """Returns the attempts of each rank, lowest rank first."""
    ranks: dict[int, list[StreamSummary]] = {}
    attempts = [stream for stream in streams if stream.is_rank]
    for stream in sorted(attempts, key=lambda stream: (stream.rank, stream.first_time)):
        ranks.setdefault(stream.rank, []).append(stream)
    return list(ranks.values())


def _joined(columns: Iterable[ColumnSummary]) -> ColumnSummary:
    return reduce(ColumnSummary.joined, columns, ColumnSummary())
