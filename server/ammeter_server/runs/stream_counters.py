"""The counters of a stream and its latest values.

Pure. The result does not depend on the division of the stream into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ammeter.wire.columns import Floats, View, measured
from ammeter.wire.frames import Event, Hello, Lost
from ammeter_server.db.json_safe import text
from ammeter_server.runs.event_counters import MAX_NAME_CHARS, MAX_SUM, OTHER, Counters, add_epoch, add_event, add_hello

SUMS = (
    "steps",
    "applied",
    "skipped",
    "nonfinite_steps",
    "nonfinite_nan",
    "nonfinite_inf",
    "nonfinite_loss_steps",
    "overflow_events",
    "backoffs",
    "growths",
    "samples",
    "step_seconds",
    "overhead_seconds",
    "checkpoints_complete",
    "checkpoints_partial",
    "grad_norms_read",
    "grad_norm_sum",
    "restores_passed",
    "restores_partial",
    "restores_failed",
)
"""Counters of one stream. They add up over the lives of a rank; the value of a run is the largest of its ranks.

steps: rows.
applied, skipped: steps in which an optimizer stepped, or in which the scaler prevented that.
nonfinite_steps: steps with NaN or Inf in the gradients.
nonfinite_nan, nonfinite_inf: numbers of those elements, where NaN and Inf were counted separately.
overflow_events: steps in which GradScaler found an Inf or NaN.
step_seconds, overhead_seconds: sums.
grad_norms_read: steps with a norm; 0 for a stream that began before this counter existed.
grad_norm_sum: sum of the finite norms.
checkpoints_complete, checkpoints_partial: saved checkpoints with all that the run needs to resume, or without some of
it.
restores_passed, restores_partial, restores_failed: checkpoints that were read back complete, with parts missing, or
damaged.
"""

LATEST = ("consecutive_skipped", "last_nonfinite_time", "checkpoint_time")
"""Values that are no sums: skipped steps in a row at the end; times in ns, 0 for never, of the last non-finite step's
end and of the last complete checkpoint."""

MEASURED_AT = ("loss_step", "grad_norm_step")
"""Names of the latest values that are steps of their stream."""

MAX_NAMES = 1_000
MAX_REASONS = 64
"""Caps on data that grows with names from outside and is written with every batch: scalars, and reasons of losses."""

BOUNDS = {
    "grad_norm": tuple(10.0**power for power in range(-8, 9)),
    "step_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
}
"""Upper bounds of the histograms. The counters contain them as `<name>_histogram`: [count per bound..., above]."""


_BOUNDS = {name: np.array(bounds) for name, bounds in BOUNDS.items()}


def advance(counters: Mapping[str, Any], view: View) -> Counters:
    """Returns the counters after the rows and events of a view."""
    after: Counters = {**dict.fromkeys(SUMS + LATEST, 0), **counters}
    if len(view):
        _add_rows(after, view)
        if "grad_norms_read" in counters or not counters.get("steps"):
            after["grad_norms_read"] += _count(measured(view.scalar("grad_norm")))
    for _, frame in view.frames:
        if isinstance(frame, Event):
            add_event(after, frame)
        elif isinstance(frame, Hello):
            add_hello(after, frame)
    return after | {name: min(after[name], MAX_SUM) for name in SUMS}


def latest(before: Mapping[str, Any], view: View) -> dict[str, Any]:
    """Returns scalar name -> last measured value, as a number; NaN and Inf stay.

    Adds grad_underflow, from the tensors: the share of gradient elements that are zero or subnormal in float16. Adds
    loss_step and grad_norm_step: the steps at which those were last measured.
    """
    after = dict(before)
    if not len(view):
        return _joined(after, _logged_late(view))
    return _joined(after, _underflow(view) | _last_measured(view) | _logged_late(view))


def _last_measured(view: View) -> dict[str, float]:
    names = view.schema.scalars
    scalars = view.values[: len(names)]
    there = measured(scalars)
    last = len(view) - 1 - there[:, ::-1].argmax(axis=1)
    columns = np.flatnonzero(there.any(axis=1))
    values = scalars[columns, last[columns]].tolist()
    found = {names[column]: value for column, value in zip(columns.tolist(), values, strict=True)}
    return found | _measured_at(view)


def _measured_at(view: View) -> dict[str, float]:
    """Returns the last steps with a loss (of any of several) and with a norm."""
    columns = dict(zip(MEASURED_AT, (view.loss(), view.scalar("grad_norm")), strict=True))
    places = {name: np.flatnonzero(measured(column)) for name, column in columns.items()}
    return {name: float(view.steps[at[-1]]) for name, at in places.items() if at.size}


def _joined(before: dict[str, Any], seen: Mapping[str, float]) -> dict[str, Any]:
    """Updates the values with new ones; adds names only up to the caps."""
    for name, value in seen.items():
        if name in before or (len(before) < MAX_NAMES and len(name) <= MAX_NAME_CHARS):
            before[name] = value
    return before


def _logged_late(view: View) -> dict[str, float]:
    """Returns values of run.log for steps whose rows were already written."""
    said: dict[str, float] = {}
    for _, frame in view.frames:
        if isinstance(frame, Event) and frame.name == "values.logged":
            numbers = {name: value for name, value in frame.data.items() if isinstance(value, int | float)}
            said |= {name: value for name, value in numbers.items() if not _measured_behind(view, name, frame.step)}
    return said


def _measured_behind(view: View, name: str, step: int) -> bool:
    """Whether the rows have that scalar at a later step."""
    return bool(len(view) and measured(view.scalar(name)[view.steps > step]).any())


def _underflow(view: View) -> dict[str, float]:
    """Share of underflow over all tensors of the last step with samples; else empty."""
    with np.errstate(over="ignore", invalid="ignore"):
        lost = view.stat("grad.zeros") + view.stat("grad.subnormals")
    sampled = np.isfinite(lost)
    where = np.flatnonzero(sampled.any(axis=0))
    if not len(where):
        return {}
    there = sampled[:, where[-1]]
    elements = int(view.numel[there].sum())
    share = float(lost[there, where[-1]].sum(dtype=np.float64)) / max(elements, 1)
    return {"grad_underflow": share} if elements and 0 <= share <= 1 else {}


def lost(before: Mapping[str, Any], losses: Iterable[Lost]) -> dict[str, dict[str, int]]:
    """Adds losses to reason -> {steps, events}."""
    after = {reason: dict(counts) for reason, counts in before.items()}
    for loss in losses:
        reason = text(loss.reason[:MAX_NAME_CHARS])
        if reason not in after and len(after) >= MAX_REASONS:
            reason = OTHER
        counts = after.setdefault(reason, {"steps": 0, "events": 0})
        counts["steps"] = min(counts["steps"] + loss.steps, MAX_SUM)
        counts["events"] = min(counts["events"] + loss.events, MAX_SUM)
    return after


def precision(before: str | None, view: View) -> str | None:
    """Returns the dtype of training under autocast, once it is known.

    "float32" for rows without autocast.
    """
    said = before
    for _, frame in view.frames:
        if isinstance(frame, Event) and frame.name == "autocast.entered" and frame.data.get("grad") is True:
            said = str(frame.data.get("dtype", ""))[:32] or said
    return said or ("float32" if len(view) and view.schema.tensors else None)


def of_run(streams: Sequence[tuple[int, Mapping[str, Any]]]) -> Counters:
    """Returns the counters of a run from (rank, counters) of its rank streams.

    Lives of a rank add up; then the largest over the ranks counts. Samples are each rank's own share of the batch, so
    they add up over ranks.
    """
    if len(streams) == 1:
        return _of_one(streams[0][1])
    ranks: dict[int, Counters] = {}
    for rank, counters in streams:
        so_far = ranks.setdefault(rank, {})
        for name in SUMS:
            so_far[name] = so_far.get(name, 0) + counters.get(name, 0)
        for name in LATEST:
            so_far[name] = max(so_far.get(name, 0), counters.get(name, 0))
        for name in BOUNDS:
            so_far[f"{name}_histogram"] = _added(so_far, counters, f"{name}_histogram")
    whole: Counters = {name: max((counted[name] for counted in ranks.values()), default=0) for name in SUMS + LATEST}
    whole["samples"] = sum(counted["samples"] for counted in ranks.values())
    for name in BOUNDS:
        whole[f"{name}_histogram"] = _highest([counted[f"{name}_histogram"] for counted in ranks.values()], name)
    return whole


def _of_one(counters: Mapping[str, Any]) -> Counters:
    """Returns the same for a run with one stream, the most frequent case, without sums."""
    numbers = {name: counters.get(name, 0) for name in SUMS + LATEST}
    return numbers | {f"{name}_histogram": counters.get(f"{name}_histogram") or _empty(name) for name in BOUNDS}


def _add_rows(after: Counters, view: View) -> None:
    skipped = _positive(view.scalar("skipped"))
    nonfinite = _nonfinite(view)
    after["steps"] += len(view)
    after["applied"] += _count(_positive(view.scalar("applied")) & ~skipped)
    after["skipped"] += _count(skipped)
    after["nonfinite_steps"] += _count(nonfinite)
    after["overflow_events"] += _count(_positive(view.scalar("found_inf")))
    loss = view.loss()
    after["nonfinite_loss_steps"] += _count(measured(loss) & ~np.isfinite(loss))
    for name, stat in (("nonfinite_nan", "grad.nans"), ("nonfinite_inf", "grad.infs")):
        after[name] += int(_sum(view.stat(stat)))
    for name in ("samples", "step_seconds", "overhead_seconds"):
        after[name] += _sum(view.scalar(name))
    if nonfinite.any():
        after["last_nonfinite_time"] = int(view.times[nonfinite][-1])
    stepped = np.flatnonzero(~skipped)
    tail = len(view) - 1 - int(stepped[-1]) if len(stepped) else len(view) + after["consecutive_skipped"]
    after["consecutive_skipped"] = tail
    _add_epochs(after, view)
    after["grad_norm_sum"] += _sum(view.scalar("grad_norm"))
    for name in BOUNDS:
        after[f"{name}_histogram"] = _filled(after.get(f"{name}_histogram") or _empty(name), name, view)


def _add_epochs(after: Counters, view: View) -> None:
    """Adds the first and the highest of the view's epochs, each at its earliest time."""
    epochs = view.scalar("epoch")
    said = np.flatnonzero(np.isfinite(epochs))
    if len(said):
        highest = said[epochs[said] == epochs[said].max()]
        for several in (said, highest):
            at = several[view.times[several].argmin()]
            add_epoch(after, float(epochs[at]), int(view.times[at]))


def _nonfinite(view: View) -> np.typing.NDArray[np.bool_]:
    """Returns the mask of rows with NaN or Inf in the gradients.

    Elements are counted in some rows only, on CUDA in none; elsewhere a non-finite norm decides. If elements were
    counted and none is non-finite, the norm of finite gradients overflowed.
    """
    norms, elements = view.scalar("grad_norm"), view.scalar("grad_nonfinite")
    return np.asarray((measured(norms) & ~np.isfinite(norms) & ~(elements == 0)) | (elements > 0))


def _positive(column: Floats) -> np.typing.NDArray[np.bool_]:
    return np.asarray(measured(column) & (column > 0))


def _count(where: np.typing.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(where))


def _sum(column: Floats) -> float:
    finite = column[np.isfinite(column)]
    return float(finite[finite > 0].sum(dtype=np.float64)) if finite.size else 0.0


def _filled(counts: Sequence[int], name: str, view: View) -> list[int]:
    column = view.scalar(name)
    finite = column[np.isfinite(column)]
    after = list(counts)
    for place in np.searchsorted(_BOUNDS[name], finite, side="left").tolist():
        after[place] += 1
    return after


def _added(left: Mapping[str, Any], right: Mapping[str, Any], name: str) -> list[int]:
    empty = _empty(name.removesuffix("_histogram"))
    return [a + b for a, b in zip(left.get(name) or empty, right.get(name) or empty, strict=True)]


def _highest(several: Sequence[Sequence[int]], name: str) -> Sequence[int]:
    """Merges the histograms of ranks: the largest cumulative count at each bound.

    So no count falls when another rank joins.
    """
    if len(several) < 2:
        return several[0] if several else _empty(name)
    below = [max(counts) for counts in zip(*map(accumulate, several), strict=True)]
    return [after - before for before, after in pairwise([0, *below])]


def _empty(name: str) -> list[int]:
    return [0] * (len(BOUNDS[name]) + 1)
