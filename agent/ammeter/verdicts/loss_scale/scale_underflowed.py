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


LARGEST_BACKOFF = 2.0**10
"""Factor per step beyond which the program has set the scale: a skipped step halves it, or lowers it by the
backoff_factor of a GradScaler, for which a thousandth would be unusual."""


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
    before_step: int = -1
    """Step of `before`. `fell_at`: that of `fell_from`."""
    fell_at: int = -1

    @property
    def was_set(self) -> bool:
        """Whether the scale fell further than skipped steps lower it in so few steps."""
        steps = self.opened.first - self.fell_at
        return 0 <= self.fell_at and self.fell_from > self.scale * LARGEST_BACKOFF**steps


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
        known = np.flatnonzero(np.isfinite(scales))
        if not known.size:
            return state
        return replace(state, before=float(scales[known[-1]]), before_step=int(rows.steps[known[-1]]))
    for step, (scale, applied) in rows.records("scale", "applied"):
        if scale <= INVERSE_INFINITE_SCALE:
            state = _without_inverse(state, step, scale, applied > 0)
        elif math.isfinite(scale):
            state = replace(_with_inverse(state, scale, applied > 0), before_step=step)
    return state


def _without_inverse(state: State, step: int, scale: float, applied: bool) -> State:
    if not state.opened.active:
        state = replace(state, fell_from=state.before, fell_at=state.before_step, scale=scale, applied=0, weight="")
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
        title=_title(state),
        cause=_cause(state),
        fix=_fix(state),
        evidence=_evidence(state),
        **lifecycle_fields(opened),
    )


def _title(state: State) -> str:
    fell = "was set" if state.was_set else "fell"
    return f"The loss scale {fell} to {wording.scale(state.scale)}, where unscaling makes NaN"


def _fix(state: State) -> str:
    new = "a new loss scale" if state.own else "a new GradScaler, without the state of this one"
    if state.was_set and state.own:
        return f"Remove what sets the loss scale at step {state.opened.first}, and continue with {new}."
    if state.was_set:
        return (
            f"Remove what sets the scale at step {state.opened.first}: scaler.update(new_scale),"
            f" scaler.load_state_dict() or a write to the scaler. Continue with {new}."
        )
    return (
        "Find what makes the gradients of every step NaN or Inf: each skipped step has lowered the scale, and a lower"
        f" scale does not mend them. Continue with {new}."
    )


def _cause(state: State) -> str:
    opened = state.opened
    if state.was_set:
        fell = f", after {wording.scale(state.fell_from)} at step {state.fell_at}: a skipped step halves it, so the"
        fell += " program has set it"
    else:
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
        f"The loss scale was {wording.scale(state.scale)} at step {opened.first}{fell}. Since step"
        f" {opened.since.removeprefix('since step ')}, 1/scale is Inf in float32{effect}{harm}"
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
