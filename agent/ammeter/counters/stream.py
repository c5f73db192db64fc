"""Counters of one stream.

Pure. The result does not depend on the division of the stream into views.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ammeter.counters import histograms, readings
from ammeter.counters.events import MAX_NAME_CHARS, MAX_SUM, OTHER, Counters, add_epoch, add_event, add_hello
from ammeter.counters.rows import count, figures, nonfinite_gradients, nonfinite_losses, positive, total
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Hello, Lost
from ammeter.wire.printable import storable

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
"""Counters of one stream. They add up over the attempts of a rank; the value of a run is the largest of its ranks.

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

GAUGES = ("consecutive_skipped", "last_nonfinite_time", "checkpoint_time")
"""Values that are no sums: skipped steps in a row at the end; times in ns, 0 for never, of the last non-finite step's
end and of the last complete checkpoint."""

NO_COUNTS = dict.fromkeys(SUMS + GAUGES, 0)
"""The counters of a stream without rows."""

MAX_REASONS = 64
"""Cap on reasons of lost records, which come from outside and are written with every batch."""


def advance(counters: Mapping[str, Any], view: View) -> Counters:
    """Returns the counters after the rows and events of a view."""
    after: Counters = {**NO_COUNTS, **counters}
    if len(view):
        _add_rows(after, view)
        if "grad_norms_read" in counters or not counters.get("steps"):
            after["grad_norms_read"] += count(measured(view.scalar("grad_norm")))
    if "readings" in counters or not counters.get("steps"):
        after["readings"] = readings.advance(counters.get("readings", {}), view)
    for _, frame in view.frames:
        if isinstance(frame, Event):
            add_event(after, frame)
        elif isinstance(frame, Hello):
            add_hello(after, frame)
    for name in SUMS:
        if after[name] > MAX_SUM:
            after[name] = MAX_SUM
    return after


def add_losses(before: Mapping[str, Any], losses: Iterable[Lost]) -> dict[str, dict[str, int]]:
    """Adds lost records to reason -> {steps, events}."""
    after = {reason: dict(counts) for reason, counts in before.items()}
    for loss in losses:
        reason = storable(loss.reason[:MAX_NAME_CHARS])
        if reason not in after and len(after) >= MAX_REASONS:
            reason = OTHER
        counts = after.setdefault(reason, {"steps": 0, "events": 0})
        counts["steps"] = min(counts["steps"] + loss.steps, MAX_SUM)
        counts["events"] = min(counts["events"] + loss.events, MAX_SUM)
    return after


def add_reached(counters: Mapping[str, Any], verdicts: Iterable[str]) -> Mapping[str, Any]:
    """Adds verdicts with a finding about the stream: they are judged, whatever was read."""
    known = counters.get("reached", ())
    new = sorted({*known, *verdicts})
    return counters if len(new) == len(known) else {**counters, "reached": new}


def precision(before: str | None, view: View) -> str | None:
    """Returns the dtype of training under autocast, once it is known.

    Without autocast it is the one that FSDP or DDP casts weights to, or that of most weights. It is "float32" for rows
    before any of them is known.
    """
    dtype = before
    for _, frame in view.frames:
        if not isinstance(frame, Event):
            continue
        if frame.name == "autocast.entered" and frame.data.get("grad") is True:
            dtype = str(frame.data.get("dtype", ""))[:32] or dtype
        elif frame.name == "weights.census" and dtype in (None, "float32"):
            dtype = str(frame.data.get("compute", ""))[:32] or _most(frame.data.get("trainable")) or dtype
    return dtype or ("float32" if len(view) and view.schema.tensors else None)


def _most(elements: Any) -> str:
    """Returns the dtype with most elements, '' for none."""
    counts = {name: n for name, n in elements.items() if isinstance(n, int)} if isinstance(elements, dict) else {}
    return str(max(counts, key=lambda name: counts[name], default=""))[:32]


def _add_rows(after: Counters, view: View) -> None:
    positives, sums = (defaultdict(int, zip(view.schema.scalars, numbers, strict=True)) for numbers in figures(view))
    nonfinite = nonfinite_gradients(view)
    after["steps"] += len(view)
    after["nonfinite_steps"] += count(nonfinite)
    after["nonfinite_loss_steps"] += count(nonfinite_losses(view))
    after["overflow_events"] += positives["found_inf"]
    for name, stat in (("nonfinite_nan", "grad.nans"), ("nonfinite_inf", "grad.infs")):
        if stat in view.schema.stats:
            after[name] += int(total(view.stat(stat)))
    for name in ("samples", "step_seconds", "overhead_seconds"):
        after[name] += sums[name]
    if nonfinite.any():
        after["last_nonfinite_time"] = int(view.times[nonfinite][-1])
    if positives["skipped"]:
        _add_skips(after, view)
    else:
        after["applied"] += positives["applied"]
        after["consecutive_skipped"] = 0
    if "epoch" in view.schema.places:
        _add_epochs(after, view)
    after["grad_norm_sum"] += sums["grad_norm"]
    for column in histograms.BOUNDS:
        after[f"{column}_histogram"] = histograms.filled(histograms.of(after, column), column, view)


def _add_skips(after: Counters, view: View) -> None:
    """Adds applied and skipped steps of rows, some of which were skipped."""
    skipped = positive(view.scalar("skipped"))
    after["applied"] += count(positive(view.scalar("applied")) & ~skipped)
    after["skipped"] += count(skipped)
    stepped = np.flatnonzero(~skipped)
    tail = len(view) - 1 - int(stepped[-1]) if len(stepped) else len(view) + after["consecutive_skipped"]
    after["consecutive_skipped"] = tail


def _add_epochs(after: Counters, view: View) -> None:
    """Adds the first and the highest of the view's epochs, each at its earliest time."""
    epochs = view.scalar("epoch")
    logged = np.flatnonzero(np.isfinite(epochs))
    if len(logged):
        highest = logged[epochs[logged] == epochs[logged].max()]
        for rows in (logged, highest):
            row = rows[view.times[rows].argmin()]
            add_epoch(after, float(epochs[row]), int(view.times[row]))
