"""Summarizes a run from the tallies of its streams. Pure; stream_summary.py counts each stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np

from ammeter.report.event_text import checkpoint
from ammeter.report.stream_summary import MAX_SEEN, SAMPLED, Span, Tally
from ammeter.wire.frames import Hello, Schema
from ammeter.wire.ranks import lives

COUNTS = {
    "steps": "steps",
    "applied": "applied",
    "skipped": "skipped",
    "nonfinite_steps": "nonfinite_steps",
    "growths": "scale_growths",
    "backoffs": "scale_backoffs",
}
"""Attribute of a tally -> key in the summary."""


SETTLED_STEPS = 64
"""Minimum number of settled steps for a cost: with fewer, a single reading determines it."""

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


def run_of(streams: Sequence[Tally]) -> dict[str, Any]:
    """Returns the identity, environment, state and end of a run from its streams."""
    ranks = [each for each in streams if each.is_rank] or list(streams)
    first = next((each.hello for each in ranks if each.hello), None) or Hello("", "", Schema())
    ended = continued(ranks)
    present = [each for each in ranks if each.stream not in ended]
    newest = max(present, key=lambda each: each.last_step, default=Tally(""))
    return {
        "id": first.run,
        "name": first.name,
        "project": first.project,
        "state": state_of(present),
        "started": instant(min((each.first_time for each in ranks), default=0)),
        "ended": instant(max((each.last_time for each in ranks), default=0))
        if state_of(present) != "running"
        else None,
        "last_step": newest.last_step if newest.last_step >= 0 else None,
        "last_step_time": instant(newest.last_step_time),
        "goodbye": _goodbye(present),
        "lives": [_life(each) for each in _together(ranks)] if ended else [],
        "world_size": first.world_size,
        "ranks_reporting": len({each.rank for each in ranks}),
        "precision": next((each.precision for each in ranks if each.precision), None),
        "torch_version": first.environment.get("torch"),
        "device_model": first.environment.get("device"),
        "host": first.host,
        "command": first.environment.get("command"),
        "config": first.config,
        "tags": first.tags,
    }


def summary_of(streams: Sequence[Tally], whole_norm: Span | None = None) -> dict[str, Any]:
    """Returns the numbers of the run, with the attempts of each rank added up.

    Series come from the lowest rank, each count from the rank with the highest one, and lost records from all ranks.
    whole_norm: the gradient norm of all shards, for sharded ranks. `grad_norm_of` is `run` or names the rank.
    """
    ranks = _ranks(streams) or [[Tally("")]]
    sums = {name: max(sum(getattr(life, name) for life in lives) for lives in ranks) for name in COUNTS}
    seconds = max(sum(life.last_time - life.first_time for life in lives) / 1e9 for lives in ranks)
    lead = ranks[0]
    step_seconds = [each for life in lead for each in life.step_seconds]
    scale = _joined([life.scale for life in lead])
    sharded = any(life.sharded for life in lead)
    whole = whole_norm if sharded and whole_norm and whole_norm.first is not None else None
    return {
        **{told: sums[name] for name, told in COUNTS.items()},
        "scale": scale.as_json() if scale.first is not None else None,
        "loss": _joined([life.loss for life in lead]).as_json(),
        "losses": {
            name: _joined([life.losses[name] for life in lead if name in life.losses]).as_json()
            for name in dict.fromkeys(name for life in lead for name in life.losses)
        },
        "val_loss": _joined([life.val_loss for life in lead]).as_json(),
        "grad_norm": (whole or _joined([life.grad_norm for life in lead])).as_json(),
        "grad_norm_of": "run" if whole or not sharded else f"rank {lead[0].rank}",
        "seconds": round(seconds, 3),
        **_cost(lead, seconds),
        "calls_followed_share": _share(sum(each.followed for each in lead), sum(each.followable for each in lead)),
        "step_seconds": float(np.median(step_seconds)) if step_seconds else None,
        "seconds_per_epoch": next((each for life in reversed(lead) if (each := life.seconds_per_epoch)), None),
        **{name: _joined([life.sampled[name] for life in lead]).as_json() for name in SAMPLED},
        "checkpoint_restores": dict(sorted(sum((life.restores for life in lead), Counter[str]()).items())),
        "lost": lost_of(streams),
        "no_step": unstepped(streams),
    }


def unstepped(streams: Sequence[Tally]) -> list[str]:
    """Returns why the run has no step: the known cause, else possible causes, likeliest first."""
    ranks = [each for each in streams if each.is_rank]
    if any(each.steps for each in ranks):
        return []
    byes = [each.bye for each in ranks if each.bye]
    if any(each.unscaled for each in ranks) or any(_NO_SCALE in bye.message for bye in byes):
        return [f"scaler.step() came before any scaler.scale(), and raised: {_SCALE}"]
    raised = [f"the program raised before its first step: {bye.message}" for bye in byes if bye.reason == "exception"]
    late = (_RESUMED if any(each.state_at_first for each in ranks) else "") + _LATE
    return [*raised[:1], late, *_MAY_BE]


def seen_in(streams: Sequence[Tally]) -> list[dict[str, Any]]:
    """Returns the sentences on events by step, each with the verdict that covers it.

    A sentence that several ranks share appears once. If one checkpoint is complete, the others count as exports, which
    need not be complete.
    """
    every: dict[tuple[Any, ...], dict[str, Any]] = {}
    complete = any(not saved.missing for each in streams for saved in each.checkpoints.values())
    for each in streams:
        for told in each.seen.values():
            every.setdefault((told["event"], told["caller"], told["said"]), told)
        for (_, step), saved in each.checkpoints.items():
            if said := checkpoint(saved.path, () if complete else saved.missing, saved.exposed):
                told = {"event": "checkpoint.saved", "step": step, "rank": each.rank, "caller": None, "said": said}
                told["verdict"] = "checkpoint-exposed" if saved.exposed else "checkpoint-incomplete"
                every.setdefault((frozenset(saved.missing), frozenset(saved.exposed)), told)
    return sorted(every.values(), key=lambda told: told["step"])[:MAX_SEEN]


def lost_of(streams: Sequence[Tally]) -> dict[str, dict[str, int]]:
    """reason -> {steps, events} of lost records, over all streams."""
    total: dict[str, dict[str, int]] = {}
    for each in streams:
        for reason, counts in each.lost.items():
            so_far = total.setdefault(reason, {"steps": 0, "events": 0})
            so_far["steps"] += counts["steps"]
            so_far["events"] += counts["events"]
    return total


def state_of(ranks: Sequence[Tally]) -> str:
    """`running` while a process is alive, `lost` if one wrote no final record, else `ended`."""
    states = {each.state for each in ranks}
    return next((state for state in ("running", "lost") if state in states), "ended")


def instant(nanoseconds: int) -> str | None:
    """Formats as RFC 3339 in UTC; None for an unknown time."""
    if not nanoseconds:
        return None
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cost(lives: Sequence[Tally], seconds: float) -> dict[str, Any]:
    """Returns the overhead of Ammeter over attempts.

    As a share of all time and of the time of settled steps, and in seconds for the starts.
    """
    costs = [each.cost for each in lives]
    start, settled = (sum(getattr(each, name) for each in costs) for name in ("start", "settled"))
    settled_of = sum(each.settled_of for each in costs)
    enough = sum(each.settled_steps for each in costs) >= SETTLED_STEPS
    return {
        "overhead_ratio": _share((start + settled) / 1e9, seconds),
        "overhead_settled_ratio": _share(settled, settled_of) if enough else None,
        "overhead_start_seconds": round(start / 1e9, 6),
        "overhead_start_steps": sum(each.start_steps for each in costs),
    }


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 5) if whole > 0 else None


def _goodbye(ranks: Sequence[Tally]) -> str | None:
    """Returns the gravest final record of the ranks as text.

    The order is lost, exception, signal, exit, closed.
    """
    byes = [each.bye for each in ranks if each.bye is not None]
    worst = max(byes, key=lambda bye: ("closed", "exit", "signal", "exception", "lost").index(bye.reason), default=None)
    if worst is None:
        return None
    return f"{worst.reason}: {worst.message}" if worst.message else worst.reason


def continued(streams: Sequence[Tally]) -> set[str]:
    """Returns the streams that a restart continued.

    Their end is not the end of the run.
    """
    together = _together([each for each in streams if each.is_rank])
    found = set()
    for at, each in enumerate(together):
        for stream in each:
            ended = stream.life.ended
            if ended is not None and any(ended <= other.life.began for later in together[at + 1 :] for other in later):
                found.add(stream.stream)
    return found


def _together(ranks: Sequence[Tally]) -> list[list[Tally]]:
    """Groups the streams by attempt of the run, ordered by rank."""
    by_name = {each.stream: each for each in ranks}
    return [[by_name[life.stream] for life in each] for each in lives(each.life for each in ranks)]


def _life(streams: Sequence[Tally]) -> dict[str, Any]:
    return {
        "started": instant(min(each.first_time for each in streams)),
        "ended": instant(max(each.last_time for each in streams)) if state_of(streams) != "running" else None,
        "last_step": max(each.last_step for each in streams),
        "state": state_of(streams),
        "goodbye": _goodbye(streams),
    }


def _ranks(streams: Sequence[Tally]) -> list[list[Tally]]:
    """Returns the attempts of each rank, lowest rank first."""
    found: dict[int, list[Tally]] = {}
    for each in sorted((each for each in streams if each.is_rank), key=lambda each: (each.rank, each.first_time)):
        found.setdefault(each.rank, []).append(each)
    return list(found.values())


def _joined(lives: Sequence[Span]) -> Span:
    return reduce(Span.join, lives, Span())
