"""Describes events in sentences: one for each event that a person can act on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ammeter.report import origin_text
from ammeter.verdicts.framework import wording
from ammeter.verdicts.low_precision.misaligned_matmul import MIN_SHARE as CONCERNS
from ammeter.verdicts.low_precision.misaligned_matmul import misaligned_sizes
from ammeter.wire.frames import Event

Data = Mapping[str, Any]


def sentence(event: Event) -> str | None:
    """Returns the event and its remedy as a sentence.

    Returns None for an event that only carries numbers, or whose data requires no action.
    """
    format_event = _SENTENCES.get(event.name)
    if format_event is None:
        return None
    try:
        return format_event(event.data) or None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # data written by another version
        return event.name


_VERDICTS = {
    "usage.mixed_scale": "mixed-scale-gradients",
    "usage.scaler_with_bf16": "pointless-scaler",
    "usage.fp16_without_scaler": "no-loss-scaling",
    "usage.half_weights": "half-master-weights",
    "usage.eps_below_dtype": "eps-underflow",
    "weights.nonfinite": "nonfinite-weights",
    "moments.nonfinite": "nonfinite-weights",
    "buffers.nonfinite": "poisoned-buffers",
    "evaluation.nonfinite": "nonfinite-validation",
    "misaligned": "misaligned-matmul",
    "sdpa-math": "sdpa-math",
    "kernels.recomputed": "dtype-switched",
    "kernels.round_trips": "activation-casts",
    "kernels.sensitive": "sensitive-op-in-half",
}
"""Event, or reason of a fallback -> the verdict whose finding covers it."""


def verdict_of(event: Event) -> str | None:
    """Returns the verdict whose finding makes the sentence on this event redundant."""
    if event.name == "kernel.fallback":
        return _VERDICTS.get(str(event.data.get("reason")), "fp32-fallback")
    if event.name.startswith("usage."):
        return _VERDICTS.get(event.name, event.name.removeprefix("usage.").replace("_", "-"))
    return _VERDICTS.get(event.name)


def _loss_not_scaled(data: Data) -> str:
    if data.get("own"):
        return (
            f"backward() was called on a loss without the program's own scale, and the gradients of {data['optimizer']}"
            f" are divided by {wording.scale(data['scale'])}: multiply the loss by the scale"
        )
    if data["scale"] is None:
        return (
            f"scaler.step() of {data['optimizer']} came before any scaler.scale(), which raises: call"
            " scaler.scale(loss).backward()"
        )
    argument = "part of the argument of backward()" if data.get("scaled_too") else "the argument of backward()"
    return (
        f"{argument} is not a result of scaler.scale(), but {data['optimizer']} steps through the scaler, which divides"
        f" its gradients by {wording.scale(data['scale'])}: call scaler.scale(loss).backward()"
    )


def _not_unscaled(data: Data) -> str:
    name = data["optimizer"]
    if data.get("again"):
        return f"{name} steps again on gradients that scaler.step() has already used: remove this step()"
    if data.get("raises"):
        return f"{name} steps without the scaler, which then has nothing to check: call scaler.step(optimizer)"
    if data.get("by_hand"):
        scale = wording.scale(data["scale"])
        return f"the weights of {name} are updated with gradients that are still multiplied by {scale}"
    by, remedy = ("the program's own scale of ", "divide them by it") if data.get("own") else ("", _BY_SCALER)
    past = "" if data.get("own") else " without the scaler"
    return f"{name} steps{past} on gradients that are still multiplied by {by}{wording.scale(data['scale'])}: {remedy}"


_BY_SCALER = "call scaler.step(optimizer)"


def _update_between(data: Data) -> str:
    return (
        f"scaler.update() came before the step of {data['optimizer']}, whose gradients still have the old scale:"
        " call it once, after all optimizers"
    )


def _mixed(data: Data) -> str:
    if data.get("own"):
        return (
            f"scaled gradients of {data['optimizer']} were added to gradients that were already divided by the scale:"
            " divide them once, after the last backward() of a step"
        )
    if data["after"] == "second unscale_":
        return f"scaler.unscale_() was called twice for {data['optimizer']} without update() between, which raises"
    if data["after"] == "unscale_ of a wrapper":
        return f"{data['optimizer']} is unscaled twice: unscale_() gets an object that wraps it, step() the optimizer"
    return (
        f"gradients of {data['optimizer']} were added to after {data['after']}, so they mix two scales: call"
        " unscale_ and update once, after the last backward() of a step"
    )


def _not_reset(data: Data) -> str:
    step = "a skipped step, so its NaN or Inf remains" if data.get("after") == "skipped" else "an applied step"
    return f"gradients of {data['optimizer']} are added to those of {step}: call zero_grad() in every step"


def _not_restored(data: Data) -> str:
    return (
        f"{data['optimizer']} was resumed without its scaler, which starts at {wording.scale(data['scale'])}: save and"
        " load scaler.state_dict() too"
    )


def _disabled(data: Data) -> str:
    device = data.get("device") or "another device"
    if device in (data.get("autocast") or ()):
        return "the scaler was made with enabled=False, and float16 is in use: enable it"
    return f"the scaler, made for {device}, is disabled while float16 is in use: pass it the device of the training"


def _half_weights(data: Data) -> str:
    refused = "; GradScaler will refuse their gradients" if data.get("refused") else ""
    return (
        f"{data['optimizer']} updates {data['count']} of {data['of']} tensors in {_list(data['dtypes'])} without a"
        f" float32 copy, where small updates are lost{refused}: keep weights in float32 under autocast"
    )


def _recomputed(data: Data) -> str:
    module, again = data.get("module") or "the model", data.get("again") or "other dtypes"
    return f"backward() recomputes {module} in {again}, and not in {data['dtype']}: restore its autocast there"


def _unsupported(data: Data) -> str:
    place = f" in {data['module']}" if data.get("module") else ""
    if data.get("problem") == "overflow":
        return f"{data.get('op') or 'an operator'}{place} was given a number that {data['dtypes'][0]} does not hold"
    if data.get("problem") == "recomputed":
        return f"checkpoint() computed {' again in '.join(data['dtypes'])}: keep one autocast around it"
    return (
        f"{data.get('op') or 'an operator'}{place} received {_list(data['dtypes'])} together and raised: cast there, or"
        " decorate the custom function with torch.amp.custom_fwd and custom_bwd"
    )


def _no_gradients(data: Data) -> str:
    optimizer = data.get("optimizer") or "an optimizer"
    if data.get("reason") in ("other-parameters", "replaced"):
        return f"{optimizer} has parameters that are not the model's: create it after the model"
    if data.get("reason") == "dropped":
        return f"{data.get('function')} returns no gradient for parameters of {optimizer}: return one in its backward()"
    return f"{optimizer} steps parameters without a gradient: check what cuts the graph between them and the loss"


def _not_as_asked(data: Data) -> str:
    return (
        f"{data['asked']} was asked for, but the loss is computed in {data['ran']}: enter autocast for the model's"
        " device around forward pass and loss"
    )


def _scheduler(data: Data) -> str:
    return (
        f"{data['scheduler']} advanced {wording.count(data['skipped'], 'time')} of {data['scheduled']} after skipped"
        " steps: advance it only after applied steps"
    )


def _lopsided(data: Data) -> str:
    return (
        f"{_list(data['skipped'])} skipped a step that {_list(data['applied'])} applied: skip or apply a step in all"
        " optimizers"
    )


def _weights(data: Data) -> str:
    count = f"{wording.count(data['count'], 'tensor')} of weights {'contains' if data['count'] == 1 else 'contain'}"
    return f"{count} NaN or Inf, {data['tensors'][0]} first{_last_finite(data)}"


def _buffers(data: Data) -> str:
    count = f"{wording.count(data['count'], 'buffer')} of the model {'contains' if data['count'] == 1 else 'contain'}"
    return f"{count} NaN or Inf, {data['tensors'][0]} first{_last_finite(data)}"


def _last_finite(data: Data) -> str:
    if data.get("last_finite_part") is not None:
        return f"; at step {data['last_finite_part']} the part that was read was finite"
    return f"; at step {data['last_finite']} they were finite" if data.get("last_finite") is not None else ""


def _evaluation(data: Data) -> str:
    place = (data.get("origin") or {}).get("module")
    origin = f"; {place} made it" if place else ""
    return f"{data['nonfinite']} of {data['read']} outputs read in evaluation contain {data['value']}{origin}"


def _fallback(data: Data) -> str:
    if data["reason"] == "misaligned" and (
        data["flops_share"] < CONCERNS or not misaligned_sizes(data["op"], data["shape"])
    ):
        return ""
    reason = _REASONS.get(data["reason"], data["reason"])
    return f"{wording.percent(data['flops_share'])} of the FLOPs, {data['op']} in {data['module']}, {reason}"


def _guard(data: Data) -> str:
    if data["action"] == "wrote":
        return ""
    to = data.get("to")
    change = f", {_value(data.get('from'))} to {_value(to)}" if data.get("from") is not None else ""
    return f"the {data['guard']} guard {data['action']}{change}: {data['reason']}"


def _value(value: Any) -> str:
    return wording.scale(value) if isinstance(value, float) else str(value)


def checkpoint(path: str, missing: Collection[str], exposed: Collection[str]) -> str | None:
    """Describes the faults of a checkpoint, which may consist of several files of one folder.

    missing: state that none of the files contains. exposed: the access that other users have to a file. Returns None if
    there is no fault.
    """
    faults = []
    if missing:
        faults.append(f"has no {', '.join(sorted(missing))}, so a resumed run would differ")
    if exposed:
        faults.append(f"others on this machine can {' and '.join(sorted(exposed))} it: chmod 0600")
    return f"checkpoint {path or 'in memory'} {'; '.join(faults)}" if faults else None


def _list(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list | tuple) else str(names)


_REASONS = {
    "autocast-off": "ran in full precision: autocast is never enabled",
    "autocast-disabled": "ran in full precision: autocast is disabled there",
    "wrong-device": "ran in full precision: autocast is enabled for another type of device",
    "custom-function": "ran in full precision: a custom Function that autocast does not know; use torch.amp.custom_fwd",
    "policy": "ran in float32 by autocast's own policy",
    "float64": "ran in float64",
    "sdpa-math": "attention ran as plain matrix products instead of a fused kernel",
    "misaligned": "has sizes that are not multiples of 8, so tensor cores are not used: pad them",
}

_SENTENCES: dict[str, Callable[[Data], str]] = {
    "usage.loss_not_scaled": _loss_not_scaled,
    "usage.gradients_not_unscaled": _not_unscaled,
    "usage.update_between_optimizers": _update_between,
    "usage.mixed_scale": _mixed,
    "usage.gradients_not_reset": _not_reset,
    "step.unfinished": lambda data: (
        f"the program ended in a step whose {'loss' if 'loss' in data else 'gradients'} contained NaN or Inf, and no"
        " optimizer stepped"
    ),
    "usage.changed_while_scaled": lambda _: "the program changes gradients that are still scaled",
    "usage.step_not_updated": lambda _: "scaler.step() was called twice without scaler.update() between, which raises",
    "usage.scaler_rebuilt": lambda data: (
        f"another scaler took over {data['optimizer']} at its first scale, {wording.scale(data['scale'])}: create it"
        " once"
    ),
    "usage.scaler_not_restored": _not_restored,
    "usage.scaler_disabled": _disabled,
    "usage.scaler_with_bf16": lambda _: "a scaler with bfloat16 costs time and may skip steps needlessly: remove it",
    "usage.fp16_without_scaler": lambda data: f"{data['optimizer']} steps on float16 gradients that were never scaled",
    "usage.half_weights": _half_weights,
    "usage.eps_below_dtype": lambda data: (
        f"the eps of {data['where']}, {data['eps']:g}, is zero in {data['dtype']}: raise it, or use float32 there"
    ),
    "usage.unsupported_op": _unsupported,
    "usage.no_gradients": _no_gradients,
    "usage.not_as_asked": _not_as_asked,
    "usage.autocast_scope": lambda data: (
        f"{data['call']} runs inside autocast: only the forward pass and the loss belong there"
        + (", and forward passes have used copies of the weights from before it" if data.get("stale_updates") else "")
    ),
    "usage.loss_in_half": lambda data: (
        f"the loss is computed in {data['dtype']}: convert the output of the model with .float() before the loss"
    ),
    "usage.scheduler_ahead": _scheduler,
    "usage.lopsided_step": _lopsided,
    "origin.found": origin_text.sentence,
    "weights.nonfinite": _weights,
    "buffers.nonfinite": _buffers,
    "evaluation.nonfinite": _evaluation,
    "moments.nonfinite": lambda data: f"the optimizer's state contains NaN or Inf: {_list(data['tensors'][:3])}",
    "kernel.fallback": _fallback,
    "kernels.recomputed": _recomputed,
    "kernels.round_trips": lambda data: f"numbers are cast from {data['dtype']} to float32 and straight back",
    "kernels.sensitive": lambda data: (
        f"the result of {data['op']} is {wording.percent(data['error'])} off in {data['dtype']}: use float32 there"
    ),
    "guard.acted": _guard,
    "checkpoint.verified": lambda data: (
        f"checkpoint {data['path']} was read back: {data['reason']}" if data.get("outcome") == "failed" else ""
    ),
}
