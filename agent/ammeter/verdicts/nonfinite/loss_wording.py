"""The words and the evidence of nonfinite-loss."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.origins.origin_event import NonfiniteOrigin
from ammeter.verdicts.nonfinite.loss_episode import State

OPERATORS = (
    (("Div", "DivTensor"), "make sure that the divisor is not 0, such as x / n.clamp(min=1) for a count n"),
    (("Log", "Log2", "Log10", "Log1P"), "keep the argument of the log above 0, such as x.clamp(min=1e-6).log()"),
    (("Sqrt", "Rsqrt"), "keep the argument of the root at or above 0, such as (x + 1e-6).sqrt()"),
    (("Softmax", "LogSoftmax"), "make sure that no row of the softmax is -Inf throughout, as a mask makes it"),
)
"""Operators -> what to do where one of them made a NaN or an Inf."""


def evidence(state: State) -> dict[str, Any]:
    """Returns the evidence of a finding. The number of applied steps is None if it is not known."""
    frontier, origin = state.frontier, state.origin
    return {
        "loss": str(wording.number(state.value)),
        "nonfinite_losses": state.bad,
        "steps_skipped": state.skipped,
        "steps_applied": None if state.uncertain else state.applied,
        "steps_partly_applied": state.partly_applied,
        "gradients_moved": state.gradient_nonzero if state.applied else None,
        "weights_at_risk": state.at_risk or weights_were_bad(state),
        "nonfinite_weight": _nonfinite_weight(state),
        "nonfinite_buffer": origin.tensor if origin.buffer else None,
        "nonfinite_tensors": frontier.count,
        **_origin_evidence(origin),
        **origin.trial_evidence(),
    }


def _origin_evidence(origin: NonfiniteOrigin) -> dict[str, Any]:
    return {
        "born_in": origin.kind or None,
        **origin.evidence(),
        "input": origin.input or None,
        "micro_batch": origin.micro_batch if origin.micro_batch >= 0 else None,
    }


def weights_were_bad(state: State) -> bool:
    """Whether the weights contained NaN or Inf before the series."""
    origin = state.origin
    return bool(state.weight_before) or (origin.kind == "weights" and not (origin.buffer and state.at_risk))


def _nonfinite_weight(state: State) -> str | None:
    """Returns a weight that was read and contained NaN or Inf."""
    origin = state.origin
    weight = (origin.tensor or origin.place) if origin.kind == "weights" and not origin.buffer else ""
    return state.weight_before or state.weight_after or weight or None


def damage(state: State) -> str:
    """Describes what became of the steps, and of the weights."""
    if state.ended:
        return f" The program ended in this step{state.ended}; no optimizer stepped."
    if weights_were_bad(state):
        return _bad_before(state)
    if state.at_risk:
        return _applied_unsafely(state)
    if state.uncertain:
        steps = "this step" if state.bad == 1 else f"{state.uncertain} of these steps"
        why = (
            f"The program has a loss scale of its own, and whether it applied or skipped {steps} was not seen"
            if state.own_scaled
            else f"Whether the program applied {steps} or dropped a backward pass was not seen: there were more passes"
            " than in the step before"
        )
        return f" {why}; no reading has found NaN or Inf in the weights since."
    if state.applied:
        zero = " and zero, so such a step does not learn from the loss" if not state.gradient_nonzero else ""
        steps = "The step was" if state.applied == 1 else f"{state.applied} such steps were"
        return f" {steps} applied; the gradients that were read there were finite{zero}."
    if state.partly_applied:
        steps = wording.count(state.partly_applied, "such step")
        return f" In {steps} one optimizer was skipped and another one stepped and changed its weights."
    if state.skipped:
        steps = "The step was" if state.skipped == 1 else "These steps were"
        return f" {steps} skipped, so no weight was changed; buffers (running statistics) were not read."
    return " No optimizer step with it was seen."


def _bad_before(state: State) -> str:
    origin = state.origin
    if origin.buffer and not state.weight_before:
        return f" {origin.tensor}, a buffer of the model, contains NaN or Inf, which reaches each of these losses."
    tensor = state.weight_before or origin.tensor or origin.place
    return (
        f" The weights contained NaN or Inf before, {tensor} among them, and a batch that uses it has no finite loss."
    )


def _applied_unsafely(state: State) -> str:
    """Describes applied steps whose gradients were not known to be finite."""
    one = state.applied == 1
    step, its, them = ("The step was", "its", "it") if one else (f"{state.applied} such steps were", "their", "them")
    scaler = "" if state.scaled else f" No GradScaler is in use that would have skipped {them}."
    gradients = f"and {its} gradients were not read" if state.unread else "with non-finite gradients"
    if state.weight_after:
        weights = f"since then the weights contain NaN or Inf, {state.weight_after} among them"
        return f" {step} applied {gradients}; {weights}.{scaler}"
    return f" {step} applied {gradients}. No reading has found NaN or Inf in the weights since.{scaler}"


def fix(state: State) -> str:
    """Returns what to do: first for the weights, then at the place to check."""
    first = state.opened.first
    if weights_were_bad(state) or state.weight_after:
        check = "check it with torch.isfinite before you continue"
        more = "" if weights_were_bad(state) else f" {_check(state)}"
        return f"Stop the run and restore {wording.earlier(first)}; {check}.{more}"
    if state.at_risk:
        weights = f"Check the weights with torch.isfinite; if one is not finite, restore {wording.earlier(first)}."
        return f"{weights} {_check(state)}"
    if state.applied and not state.gradient_nonzero:
        return f"Stop the run: steps with zero gradients are wasted. {_check(state)}"
    return _check(state)


def _check(state: State) -> str:
    """Names the place to check, by the origin."""
    origin = state.origin
    if origin.kind == "input":
        sample = f", sample {origin.sample}," if origin.sample >= 0 else ""
        return (
            f"Check the data of step {origin.step}: {origin.argument}{sample} contains NaN or Inf. Remove or clamp such"
            " samples where they are loaded or computed."
        )
    if origin.reason == "constant" and origin.beyond >= 0:
        return (
            f"Normalize or clamp {origin.argument} below 65504 before the model, or use dtype=torch.bfloat16 in"
            " autocast, whose range reaches 3e38."
        )
    if origin.reason == "constant":
        return (
            f"Check what {origin.line or origin.place} receives at step {origin.step} besides its inputs in the graph: "
            "targets, masks, weights of samples, and results that were computed without gradients or detached."
        )
    if origin.kind == "forward" and origin.trial:
        return origin.fix()
    if origin.kind and origin.op != "loss" and "Loss" not in origin.op:  # such as NllLossBackward0
        place = origin.line or origin.place
        known = next((advice for names, advice in OPERATORS if origin.operator in names), "")
        if known:
            return f"At {place}, {known}."
        suspects = "a division by zero, the log or root of zero, or a softmax over -Inf alone"
        if origin.dtype not in ("float32", "float64", "bfloat16"):
            return (
                f"Check {place} for an overflow above 65504 in float16, {suspects}. Run it in float32 with"
                " torch.autocast(..., enabled=False), or clamp its input."
            )
        return f"Check {place} for {suspects}. Clamp its input, or add an eps that {origin.dtype} holds."
    return (
        f"Check the batch of step {state.opened.first} and the loss function: a mean over no targets (all ignored), log"
        " or division by zero, logits above 65504 in float16. Compute the loss in float32."
    )
