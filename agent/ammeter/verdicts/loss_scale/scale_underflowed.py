"""scale-underflowed: the inverse of the loss scale is infinite, so unscaling itself produces NaN."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

RECOVERED_STEPS = 10
"""Applied steps at a scale with a finite inverse that close the verdict."""


MAX_NAME_CHARS = 120
"""Characters of a tensor's name that are stored, to limit the size of the state."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    before: float = -1.0
    """The last scale with a finite inverse."""
    fell_from: float = -1.0
    scale: float = 0.0
    applied: int = 0
    recovered: int = 0
    weight: str = ""
    """A weight with NaN or Inf that was read after such a step was applied."""
    own: bool = False
    """Whether the program scales its loss itself, without a GradScaler."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("weights.nonfinite", "scaler.seen"):
        if isinstance(part, View):
            state = _rows(state, part) if len(part) else state
        elif isinstance(part, Event) and part.name == "scaler.seen":
            state = replace(state, own=True) if part.data.get("own") else state
        elif isinstance(part, Event) and state.opened.active and state.applied:
            tensors = part.data.get("tensors") or ["a weight"]
            state = replace(state, weight=state.weight or str(tensors[0])[:MAX_NAME_CHARS])
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    scales = rows.scalar("scale")
    if not state.opened.active and not (scales <= INVERSE_INFINITE_SCALE).any():
        known = scales[np.isfinite(scales)]
        last = float(known[-1]) if known.size else state.before
        return state if last == state.before else replace(state, before=last)
    for step, (scale, applied) in rows.records("scale", "applied"):
        if scale <= INVERSE_INFINITE_SCALE:
            state = _without_inverse(state, step, scale, applied > 0)
        elif math.isfinite(scale):
            state = _with_inverse(state, scale, applied > 0)
    return state


def _without_inverse(state: State, step: int, scale: float, applied: bool) -> State:
    if not state.opened.active:
        state = replace(state, fell_from=state.before, scale=scale, applied=0, weight="")
    return replace(state, opened=state.opened.at(step, step), applied=state.applied + applied, recovered=0)


def _with_inverse(state: State, scale: float, applied: bool) -> State:
    recovered = state.recovered + applied if state.opened.active else 0
    if recovered >= RECOVERED_STEPS:
        return replace(state, before=scale, opened=state.opened.over(), recovered=0)
    return replace(state, before=scale, recovered=recovered)


def _conclude(state: State) -> Finding:
    opened = state.opened
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=f"Loss scale {state.scale:.3g} is too small to unscale gradients",
        cause=_cause(state),
        fix=f"Stop the run, restore {wording.earlier(opened.first)}, and continue with a new"
        f" {'loss scale' if state.own else 'GradScaler'}; do not load this scaler's state. Then find out why the scale"
        " fell: either step after step was skipped, or the program set it.",
        evidence=_evidence(state),
        **lifecycle_fields(opened),
    )


def _cause(state: State) -> str:
    opened = state.opened
    fell = f", and {wording.scale(state.fell_from)} before" if state.fell_from > 0 else ""
    were = f"{wording.count(state.applied, 'such step')} {'was' if state.applied == 1 else 'were'} applied"
    harm = (
        f" {were}, and the weights contain NaN or Inf since then, {state.weight} among them."
        if state.weight
        else f" {were}; no reading has found NaN or Inf in the weights since; check them with torch.isfinite."
        if state.applied
        else " So far no such step was applied; an applied one would write NaN or Inf into the weights."
    )
    effect = (
        ": gradients multiplied by it become Inf and NaN, and a check for Inf before that finds none."
        if state.own
        else " and unscale_ turns finite gradients into Inf and NaN. GradScaler checks for Inf before that and does not"
        " skip the step."
    )
    return (
        f"The loss scale underflowed to 2^-128 or less {opened.since}, so 1/scale is Inf in float32{effect}"
        f" The scale was {wording.scale(state.scale)} at step {opened.first}{fell}.{harm}"
    )


def _evidence(state: State) -> dict[str, Any]:
    return {
        "scale": state.scale,
        "scale_before": state.fell_from if state.fell_from >= 0 else None,
        "steps_applied": state.applied,
        "nonfinite_weight": state.weight or None,
    }


VERDICT = Verdict(
    id="scale-underflowed",
    severity="page",
    title="The loss scale underflowed",
    question="Is the loss scale so small that its inverse is infinite?",
    columns=("scale", "applied"),
    events=("weights.nonfinite", "scaler.seen"),
    state=State,
    history=("scale", "applied"),
    judge=judge,
    explains=("nonfinite-weights", "nonfinite-gradient", "nonfinite-loss", "scale-collapse", "gradient-underflow"),
)
