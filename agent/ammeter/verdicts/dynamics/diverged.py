"""diverged: the loss leaves its level for good, because the steps are too large.

The loss is known at every step, so an explosion within a few steps is found even if no gradient was read there. A rise
that other causes may have, such as a change of the data, also needs a reading of the updates or of the gradient norm.
A loss that jumps once and then falls without a large step belongs to a new objective.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.dynamics import divergence_wording
from ammeter.verdicts.dynamics.divergence_kind import LARGE_STEP, drifts, kind_of, rose
from ammeter.verdicts.dynamics.divergence_state import State, continued, forget_aftermath, opened
from ammeter.verdicts.dynamics.divergence_trace import Trace
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.learning_rates import stating
from ammeter.verdicts.framework.lifecycle import changed, lifecycle_fields
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event, Hello

MAX_COLUMNS = 6
"""Columns of losses that are followed, which bounds the state: `loss`, `loss_backward` and four of a run with
several."""

RATIOS = 4
"""Stored readings of the update ratio: readings come in pairs."""

QUIET_ROWS = 8
"""Rows from which arrays are faster than one row after the other."""


@partial(stating, conclude=lambda state: _conclude(state))
def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "bye", *VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = _hello(state, part.environment)
        elif isinstance(part, Event):
            state = _origin(state, part)
        else:
            state = _decided(state)
    return state, changed(_conclude, before, state)


def _hello(state: State, facts: dict[str, Any]) -> State:
    rate = state.rate or str(facts.get("optimizer.lr", ""))[:40]
    maximizes = "True" in str(facts["optimizer.maximize"]) if "optimizer.maximize" in facts else state.maximizes
    name = state.optimizer or str(facts.get("optimizer", ""))[:40]
    return replace(state, rate=rate, optimizer=name, maximizes=maximizes)


def _origin(state: State, event: Event) -> State:
    """Acquits the steps of a NaN that an input of the model had."""
    return replace(state, doubted="") if state.doubted and event.data.get("kind") == "input" else state


def _decided(state: State) -> State:
    """Opens the finding on a NaN that no input of the model had, as far as its step showed."""
    if not state.doubted:
        return state
    name = state.doubted
    state = replace(state, doubted="")
    return opened(state, "nan", name, state.traces[name], state.doubted_step, state.doubted_loss)


def _rows(state: State, rows: View) -> State:
    state, columns = _with_traces(state, rows)
    losses = {name: rows.scalar(name) for name in columns}
    ratios, norms = rows.scalar("update_ratio"), rows.scalar("grad_norm")
    applied = rows.scalar("applied") > 0
    begin, count = 0, len(rows)
    while begin < count:
        quiet = 0
        if count - begin >= QUIET_ROWS and _is_calm(state):
            quiet = min((_quiet(state.traces[name], losses[name][begin:]) for name in columns), default=count - begin)
            large = np.flatnonzero(ratios[begin : begin + quiet] >= LARGE_STEP)
            quiet = int(large[0]) if large.size else quiet
            end = begin + quiet
            state = _accepted(
                state, rows.steps[begin:end], losses, ratios, np.where(applied, norms, np.nan), begin, end
            )
        begin += quiet
        if begin < count:
            at = begin
            places = rows.schema.places
            present = {name: float(losses[name][at]) for name in columns if rows.is_measured[places[name], at]}
            norm = float(norms[at]) if applied[at] else math.nan
            state = _row(state, int(rows.steps[at]), present, float(ratios[at]), norm)
            begin += 1
    return state


def _with_traces(state: State, rows: View) -> tuple[State, list[str]]:
    """Begins the traces of losses that appear in these rows; returns the columns with a trace."""
    columns = rows.schema.losses[:MAX_COLUMNS]
    new = [name for name in columns if name not in state.traces and measured(rows.scalar(name)).any()]
    if new:
        state = replace(state, traces=dict(sorted((state.traces | {name: Trace() for name in new}).items())))
    return state, [name for name in columns if name in state.traces]


def _is_calm(state: State) -> bool:
    return not state.opened.active and all(trace.is_calm for trace in state.traces.values())


def _quiet(trace: Trace, losses: Any) -> int:
    """Returns the number of rows before the first one whose loss is not near the level."""
    is_present = measured(losses)
    if is_present.all():
        return trace.quiet(losses)
    present = np.flatnonzero(is_present)
    quiet = trace.quiet(losses[present])
    return len(losses) if quiet == len(present) else int(present[quiet])


def _accepted(state: State, steps: Any, losses: dict[str, Any], ratios: Any, norms: Any, begin: int, end: int) -> State:
    """Adds rows in which all losses are near their levels."""
    if begin == end:
        return state
    traces = dict(state.traces)
    for name, column in losses.items():
        part = column[begin:end]
        traces[name] = traces[name].accept(part[measured(part)])
    read = np.flatnonzero(~np.isnan(ratios[begin:end]))[-RATIOS:]
    more = tuple((int(steps[at]), float(ratios[begin + at])) for at in read)
    finite = norms[begin:end][np.isfinite(norms[begin:end])]
    high = max(state.norm_high, float(finite.max())) if finite.size else state.norm_high
    return replace(state, traces=traces, ratios=(*state.ratios, *more)[-RATIOS:], norm_high=high)


def _row(state: State, step: int, losses: dict[str, float], ratio: float, norm: float) -> State:
    """Adds one row of any kind."""
    state = _decided(state)
    was_calm = not any(trace.since for trace in state.traces.values())
    before, traces = state.traces, dict(state.traces)
    for name, loss in losses.items():
        traces[name] = traces[name].add(step, loss)
    state = replace(state, traces=traces)
    if not math.isnan(ratio):
        large_step = step if ratio >= LARGE_STEP else state.large_step
        state = replace(state, ratios=(*state.ratios, (step, ratio))[-RATIOS:], large_step=large_step)
    rises = any(trace.since for trace in traces.values())
    if was_calm and rises:
        state = replace(state, norm_peak=0.0)
    if math.isfinite(norm):
        if rises:
            state = replace(state, norm_peak=max(state.norm_peak, norm))
        elif not state.opened.active:
            state = replace(state, norm_high=max(state.norm_high, norm))
    if state.opened.active:
        if ratio > state.ratio:
            state = replace(state, ratio=ratio)
        return continued(state, step, losses.get(state.column, math.nan), state.column in losses)
    for name, loss in losses.items():
        other_is_calm = any(other != name and traces[other].is_calm for other in losses)
        kind = kind_of(state, before[name], traces[name], step, loss, other_is_calm)
        if kind == "nan" and not rose(before[name]):
            return replace(state, doubted=name, doubted_step=step, doubted_loss=loss)
        if not kind and not math.isnan(ratio) and drifts(state, traces[name]):
            kind = "drifting"
        if kind:
            return opened(state, kind, name, before[name], step, loss)
    return forget_aftermath(state)


def _conclude(state: State) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity="page" if state.kind in ("exploded", "nan") or state.nan_step >= 0 else "ticket",
        title=divergence_wording.title(state),
        cause=divergence_wording.cause(state),
        fix=divergence_wording.fix(state),
        evidence=wording.finite(_evidence(state)),
        **lifecycle_fields(state.opened),
    )


def _evidence(state: State) -> dict[str, Any]:
    numbers = {
        "first_loss": state.start,
        "loss_before": state.before,
        "loss": state.loss,
        "largest_loss": state.peak,
        "grad_norm": state.norm,
        "usual_grad_norm": state.norm_before,
        "update_ratio": state.ratio,
    }
    known: dict[str, Any] = {name: None if math.isnan(number) else number for name, number in numbers.items()}
    if state.kind == "nan":
        known["loss"] = state.loss
    return known | {"nonfinite_from": state.nan_step if state.nan_step >= 0 else None, "lr": state.rate or None}


VERDICT = Verdict(
    id="diverged",
    severity="page",
    title="Training diverges",
    question="Does the loss rise far above its level and stay there, or do steps replace the weights?",
    columns=("loss", "loss_backward", "applied", "grad_norm", "update_ratio", "optimizer_lr"),
    events=("origin.found",),
    state=State,
    history=("loss",),
    judge=judge,
    explains=(
        "masked-row-nan",
        "activation-overflow",
        "scale-underflowed",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-weights",
        "poisoned-buffers",
        "nonfinite-validation",
        "scale-collapse",
        "gradient-spike",
        "sign-flip",
        "overflow-storm",
        "scheduler-ahead",
        "lopsided-step",
        "gradient-underflow",
        "stagnation",
    ),
)
