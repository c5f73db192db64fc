"""gradients-not-unscaled: the loss was scaled, but the optimizer stepped without the scaler."""

from __future__ import annotations

from ammeter.verdicts.call_order import own_scaling
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _past_update(call: str, times: str) -> str:
    """Returns the cause if update() raised an error for lack of a step of the scaler."""
    return (
        f"{call} was called directly instead of through scaler.step(), on gradients of a loss that scaler.scale() had"
        f" multiplied by {times}. The scaler has neither unscaled them nor checked them for NaN and Inf, so that"
        " scaler.update() raised 'No inf checks were recorded prior to update.'"
    )


def _changed(call: str, times: str, ratio: float) -> str:
    """Returns the cause if the program had changed the gradients between backward() and the step."""
    return (
        f"{call} was called directly instead of through scaler.step(). The program had changed the gradients before it,"
        f" but not divided them by the loss scale: their typical element was {ratio:.2g} times the one that backward()"
        f" had left, which is multiplied by {times}. SGD takes steps that many times too large; Adam normalizes them,"
        " which hides the mistake. Neither skips a step with NaN or Inf."
    )


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    name = data.get("optimizer") or "optimizer"
    call = f"{name}.step() at {data['caller']}" if data.get("caller") else f"{name}.step()"
    scale = None if data.get("scale") is None else float(data["scale"])
    times = "the loss scale" if scale is None else f"the scale of {wording.scale(scale)}"
    used = f"{call} was called directly instead of through scaler.step()"
    if data.get("by_state"):
        used, call = f"{name} has updated its weights and its state without scaler.step()", "its own update"
    own = own_scaling.gradients_not_unscaled(data) if data.get("own") else None
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="The optimizer steps past the scaler"
        if data.get("raises")
        else "The optimizer steps on scaled gradients",
        cause=own.cause
        if own
        else _past_update(call, times)
        if data.get("raises")
        else _changed(call, times, float(data["ratio"]))
        if data.get("ratio") is not None
        else f"{used}, so the optimizer used gradients that are still multiplied by {times}. SGD takes steps that many"
        " times too large; Adam normalizes them, which hides the mistake. Neither skips a step with NaN or Inf.",
        fix=own.fix
        if own
        else f"Call scaler.step(optimizer) instead of {call}, and scaler.update() after it. If the optimizer is SGD,"
        f" restore {wording.earlier(state.opened.first)}: such steps ruin the weights.",
        caller=data.get("caller") or None,
        evidence={"optimizer": data.get("optimizer"), "scale": scale},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="gradients-not-unscaled",
    severity="ticket",
    title="Gradients are not unscaled",
    question="Does an optimizer step without the scaler on gradients of a scaled loss?",
    columns=(),
    events=("usage.gradients_not_unscaled",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.gradients_not_unscaled", _conclude),
    explains=(
        "diverged",
        "clip-before-unscale",
        "activation-overflow",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-weights",
        "scale-collapse",
    ),
)
