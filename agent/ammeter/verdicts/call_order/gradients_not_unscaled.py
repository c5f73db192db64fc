"""gradients-not-unscaled: the loss was scaled, but the optimizer stepped without the scaler."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.call_order import own_scaling
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    name = data.get("optimizer") or "optimizer"
    call = f"{name}.step() at {data['caller']}" if data.get("caller") else f"{name}.step()"
    scale = None if data.get("scale") is None else float(data["scale"])
    words = _words(data, call, "the loss scale" if scale is None else f"the scale of {wording.scale(scale)}")
    evidence = {"optimizer": data.get("optimizer"), "scale": scale}
    evidence |= {name: data[name] for name in ("again", "factor", "usual") if data.get(name)}
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(data),
        cause=words.cause,
        fix=words.fix or _fix(data, call),
        caller=data.get("caller") or None,
        evidence=evidence,
        **lifecycle_fields(state.opened),
    )


def _title(data: dict[str, Any]) -> str:
    if data.get("again"):
        return "The optimizer steps again after the scaler"
    if data.get("by_hand"):
        return "Weights are updated with scaled gradients"
    name = str(data.get("optimizer") or "").partition(" of ")[0] or "The optimizer"
    return f"{name} steps past the scaler" if data.get("raises") else f"{name} steps on scaled gradients"


def _words(data: dict[str, Any], call: str, times: str) -> own_scaling.Text:
    """Cause, and fix if it is not the usual one."""
    if data.get("by_hand"):
        return own_scaling.weights_updated(data)
    if data.get("own"):
        return own_scaling.gradients_not_unscaled(data)
    if data.get("again"):
        return own_scaling.Text(_again(call, data), "")
    if data.get("raises"):
        return own_scaling.Text(_past_update(call, times), "")
    if data.get("ratio") is not None:
        return own_scaling.Text(_changed(call, times, float(data["ratio"]), str(data.get("optimizer") or "")), "")
    name = data.get("optimizer") or "optimizer"
    used = (
        f"{name} has updated its weights and its state without scaler.step()" if data.get("by_state") else _used(call)
    )
    return own_scaling.Text(
        f"{used}, so the optimizer used gradients that are still multiplied by {times}."
        f"{own_scaling.effect_on(name)} It does not skip a step with NaN or Inf.",
        "",
    )


def _fix(data: dict[str, Any], call: str) -> str:
    if data.get("again"):
        return f"Remove {call}, or call it only where no GradScaler is in use: scaler.step(optimizer) makes the step."
    instead = "its own update" if data.get("by_state") else call
    return f"Call scaler.step(optimizer) instead of {instead}, and scaler.update() after it."


def _used(call: str) -> str:
    return f"{call} was called directly instead of through scaler.step()"


def _again(call: str, data: dict[str, Any]) -> str:
    """Returns the cause if scaler.step() had already used the gradients."""
    skipped = " The scaler had just skipped this step." if data["again"] == "skipped" else ""
    return (
        f"{call} was called after scaler.step(optimizer), on the same gradients: no backward() and no reset came in"
        f" between.{skipped} A step that the scaler has made is made twice in this way, and one that it skips because"
        " of NaN or Inf is made all the same."
    )


def _past_update(call: str, times: str) -> str:
    """Returns the cause if update() raised an error for lack of a step of the scaler."""
    return (
        f"{_used(call)}, on gradients of a loss that scaler.scale() had multiplied by {times}. The scaler has neither"
        " unscaled them nor checked them for NaN and Inf, so that scaler.update() raised 'No inf checks were recorded"
        " prior to update.'"
    )


def _changed(call: str, times: str, ratio: float, name: str) -> str:
    """Returns the cause if the program had changed the gradients between backward() and the step."""
    return (
        f"{_used(call)}. The program had changed the gradients before it, but not divided them by the loss scale: their"
        f" typical element was {ratio:.2g} times the one that backward() had left, which is multiplied by {times}."
        f"{own_scaling.effect_on(name)} It does not skip a step with NaN or Inf."
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
        "masked-row-nan",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-weights",
        "scale-collapse",
    ),
)
