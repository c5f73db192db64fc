"""clip-before-unscale: the norm of scaled gradients is limited, and unscaling then divides the rest."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.call_order import own_scaling
from ammeter.verdicts.call_order.clip_dips import Dips, follow_dips
from ammeter.verdicts.call_order.clip_signature import ConstantNorm, follow, norms_of
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import truncated
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MIN_HARMFUL_RATIO = 16.0
"""Minimum ratio of scale to limit. A limit within this factor of the scale was multiplied by the scale on purpose;
usual limits are 0.1 to 10, usual scales 2^10 and more. At a scale below it little is lost."""

MIN_OWN_HARMFUL_RATIO = 256.0
"""The same for a norm that was read after the program's own division by the scale. A program may limit it there, and
usual limits are larger than 1/256."""


EFFECT = (
    "SGD hardly learns from gradients of that size; Adam normalizes them, but its eps and the clipped proportions still"
    " change its steps."
)
"""The consequence for the two families of optimizers, if the run's is not known."""

EFFECTS = {
    "SGD": "SGD hardly learns from gradients of that size.",
    "Adam": "{name} normalizes them, but its eps and the clipped proportions still change its steps.",
}
"""The same for an optimizer with this in its name."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    caller: str = ""
    limit: float = 0.0
    scale: float = 0.0
    constant_norm: ConstantNorm = ConstantNorm()
    """Evidence of a clip that is not torch's. It is collected until the verdict is reached."""
    by_norm: bool = False
    by_value: bool = False
    own: bool = False
    """Whether the program scales its loss itself."""
    data: dict[str, Any] = {}
    """Data of the event on a program that scales its loss itself."""
    dips: Dips = Dips()
    """Evidence of such a clip in some steps only."""
    unscaled_at: str = ""
    """Line of a call that unscaled gradients which the program had changed since backward()."""
    optimizer: str = ""
    """Name of the optimizer, if the call showed it."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("usage.clip_before_unscale", "usage.changed_while_scaled", "scaler.seen"):
        if isinstance(part, Event) and part.name == "scaler.seen":
            state = replace(state, own=True) if part.data.get("own") else state
        elif isinstance(part, Event) and part.name == "usage.changed_while_scaled":
            state = replace(state, unscaled_at=state.unscaled_at or truncated(str(part.data.get("caller", ""))))
        elif isinstance(part, Event):
            state = _event(state, part)
        elif isinstance(part, View) and not state.opened.active:
            state = _rows(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    limit, scale = _limit(event), float(event.data.get("scale", 0.0))
    is_shown = "left" in event.data
    if state.opened.active or not (is_shown or _is_harmful(limit, scale)):
        return state
    caller = str(event.data.get("caller", ""))
    by_value = "max_norm" not in event.data and "clip_value" in event.data
    opened = state.opened.at(event.step, event.step)
    data = {name: truncated(value) for name, value in event.data.items()} if event.data.get("own") else {}
    optimizer = truncated(str(event.data.get("optimizer") or ""))
    state = replace(state, opened=opened, caller=caller, limit=limit, scale=scale, optimizer=optimizer)
    return replace(state, by_value=by_value, data=data)


def _limit(event: Event) -> float:
    """Returns the limit of the norm, or of each value: torch clips either."""
    return float(event.data.get("max_norm", event.data.get("clip_value", 0.0)))


def _rows(state: State, rows: View) -> State:
    norms = norms_of(rows)
    is_harmful = _is_harmful_after_division if state.own else _is_harmful
    constant_norm, by_constant = follow(state.constant_norm, norms, is_harmful)
    dips, by_dips = follow_dips(state.dips, norms, is_harmful)
    if by_constant is not None and (by_dips is None or by_constant <= by_dips):
        state = replace(state, constant_norm=constant_norm, dips=Dips())
        return _by_norm(state, rows, by_constant, constant_norm.first, constant_norm.high)
    if by_dips is not None:
        state = replace(state, constant_norm=ConstantNorm(), dips=dips)
        return _by_norm(state, rows, by_dips, dips.first, dips.norm)
    if constant_norm is state.constant_norm and dips is state.dips:
        return state
    return replace(state, constant_norm=constant_norm, dips=dips)


def _by_norm(state: State, rows: View, at: int, first: int, limit: float) -> State:
    opened = state.opened.at(first, int(rows.steps[at]))
    return replace(state, opened=opened, limit=limit, scale=float(rows.scalar("scale")[at]), by_norm=True)


def _is_harmful(limit: float, scale: float) -> bool:
    return scale > MIN_HARMFUL_RATIO and limit * MIN_HARMFUL_RATIO < scale


def _is_harmful_after_division(limit: float, scale: float) -> bool:
    return limit * MIN_OWN_HARMFUL_RATIO < scale


def _conclude(state: State) -> Finding:
    if "left" in state.data:
        return _shown_by_size(state)
    remaining = state.limit / state.scale
    if state.by_norm:
        return _unknown_place(state, remaining)
    where = f" at {state.caller}" if state.caller else ""
    clip = f"clip_grad_value_{where}" if state.by_value else f"clip_grad_norm_{where}"
    limit = "each value" if state.by_value else "their norm"
    remains = f"values of {remaining:.2g} remain" if state.by_value else f"a norm of {remaining:.2g} remains"
    own = None
    if state.data:
        kept = f"It limits {limit} to {state.limit:g}; after the division, {remains}. {_effect(state)}"
        own = own_scaling.clip_before_unscale(state.scale, clip, kept)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Gradients are clipped before they are unscaled" if own else "Gradients are clipped before unscale_",
        cause=own.cause
        if own
        else f"{clip} clips gradients that are still multiplied by the loss scale of {wording.scale(state.scale)}, so"
        f" after unscaling they are far too small. It limits {limit} to {state.limit:g}; unscaled, {remains}."
        f" {_effect(state)}",
        fix=own.fix
        if own
        else f"Call scaler.unscale_(optimizer) before {clip}; the limit of {state.limit:g} then applies to the true"
        " gradients.",
        caller=state.caller or None,
        evidence={"max_norm": state.limit, "scale": state.scale, "norm_left": remaining},
        **lifecycle_fields(state.opened),
    )


def _shown_by_size(state: State) -> Finding:
    text = own_scaling.small_after_division(state.data)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Gradients are limited before they are unscaled",
        cause=text.cause,
        fix=text.fix,
        caller=state.caller or None,
        evidence={name: state.data.get(name) for name in ("scale", "left", "optimizer")},
        **lifecycle_fields(state.opened),
    )


def _unknown_place(state: State, remaining: float) -> Finding:
    at = f" at {state.unscaled_at}" if state.unscaled_at else ""
    after = f"after the call{at} unscales them" if at else "after unscaling"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Gradients are limited before {'they are unscaled' if state.own else 'unscale_'}",
        cause=f"The program limits the norm of gradients that are still multiplied by the loss scale of"
        f" {wording.scale(state.scale)}, so {after} they are far too small. {_observed(state)}; unscaled, a"
        f" norm of {remaining:.2g} remains. {_effect(state)}",
        fix="Find the code that limits the gradients between backward() and step(), and divide the gradients by the"
        " scale before it."
        if state.own
        else "Find the code that limits the gradients between backward() and"
        f" {f'the call{at}' if at else 'scaler.step(optimizer)'}, and call scaler.unscale_(optimizer) before it.",
        caller=state.unscaled_at or None,
        evidence={"max_norm": state.limit, "scale": state.scale, "norm_left": remaining},
        **lifecycle_fields(state.opened),
    )


def _effect(state: State) -> str:
    found = next((effect for name, effect in EFFECTS.items() if name in state.optimizer), EFFECT)
    return found.format(name=state.optimizer)


def _observed(state: State) -> str:
    if state.constant_norm.complete:
        return (
            f"For {state.constant_norm.steps} steps the scaled norm was {state.limit:.4g}, constant to a thousandth,"
            " while its parts changed"
        )
    if state.dips.count == 1:
        return (
            f"At step {state.dips.first} the scaled norm was {state.limit:.4g}, a round number, as limits are; the"
            f" unscaled norm of other steps is {state.dips.usual:.2g}"
        )
    return (
        f"In {state.dips.count} steps the scaled norm was {state.limit:.4g}, the same each time, while its parts"
        f" changed; the unscaled norm of other steps is {state.dips.usual:.2g}"
    )


VERDICT = Verdict(
    id="clip-before-unscale",
    severity="ticket",
    title="Clipping before unscaling",
    question="Are gradients clipped while they are still scaled?",
    columns=("grad_norm", "scale", "applied", "grad.norm"),
    events=("usage.clip_before_unscale", "usage.changed_while_scaled", "scaler.seen"),
    state=State,
    judge=judge,
    explains=("gradient-underflow", "stagnation"),
)
