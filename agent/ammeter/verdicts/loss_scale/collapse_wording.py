"""Title, cause and fix of a scale-collapse finding."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.scale_limits import INVERSE_INFINITE_SCALE, MIN_USEFUL_SCALE
from ammeter.verdicts.loss_scale.collapse_state import State


def cause(state: State) -> str:
    opened, place = state.opened, state.frontier
    skipped = f"skipped {state.lost_steps} steps from {opened.first} to {opened.last}"
    if state.at_any_scale and place.count == 1 and place.tensor:
        others = wording.count(place.before + place.after, "other")
        return (
            f"The gradient of {place.tensor} contained NaN or Inf when it was read at step {place.step}; {others} were"
            f" finite. The scaler {skipped}{_scales(state).replace(', so the', ', while the')}: gradients were"
            f" non-finite at a scale of 1 and below, so a lower one does not help.{_outlook(state)}"
        )
    return (
        f"The scaler {skipped} because their gradients contained NaN or Inf{_scales(state)}. {_before(state)}"
        f"{_after(state)}{place.words()}{_outlook(state)}"
    )


def title(state: State) -> str:
    if state.several:
        return f"{state.lost_steps} steps were skipped in a run with several scalers"
    place = state.frontier
    if state.at_any_scale and place.count == 1 and place.tensor:
        return f"The gradient of {place.tensor} contains NaN or Inf, and no lower loss scale helps"
    if not state.constant:
        return f"Loss scale collapsed from {state.from_scale:.6g} to {wording.figure(state.lowest)}"
    if state.applied_between:
        steps = f"{state.lost_steps} of {state.lost_steps + state.applied_between} steps"
        return f"{steps} were skipped at a loss scale of {state.to_scale:.6g}"
    resumed = state.resumed >= 0
    steps = f"Every step from {state.opened.first} to {state.opened.last} was" if resumed else "Every step is"
    return f"{steps} skipped at a loss scale of {state.to_scale:.6g}"


def _scales(state: State) -> str:
    if state.several:
        start, lowest = wording.scale(state.from_scale), wording.scale(state.lowest)
        moved = f"stayed {lowest}" if state.constant else f"fell from {start} to {lowest}"
        return f", while the smallest scale of the run's scalers {moved}"
    if state.constant:
        return f", while the loss scale stayed {wording.scale(state.to_scale)}"
    return f", so the loss scale fell from {wording.scale(state.from_scale)} to {wording.scale(state.lowest)}"


def _before(state: State) -> str:
    """Describes how these scales performed before."""
    if state.several:
        return "The scale of each skipped step is in the events step.skipped."
    if state.had_been_applied:
        known = "this scale" if state.constant else "the first of these scales"
        known = wording.scale(state.good_scale) if state.good_scale < state.from_scale else known
        worked = "had worked" if state.good_scale > INVERSE_INFINITE_SCALE else "had been used in an applied step"
        return f"Before, {known} {worked}."
    return (
        "The collapse began above the scale of the last applied step."
        if state.highest
        else "No step was applied before."
    )


def _after(state: State) -> str:
    """Describes the scales of the failures, and whether a lower scale helped."""
    if state.applied_between:
        return _between(state)
    if state.several:
        return f" Steps are applied again since step {state.resumed}." if state.resumed >= 0 else ""
    if state.resumed >= 0:
        again = f" Steps are applied again since step {state.resumed}"
        if state.resumed_scale < state.lowest:
            return (
                f"{again}, at a scale of {wording.scale(state.resumed_scale)}, so either the gradients overflow above"
                " it, or the bad batches have passed."
            )
        return f"{again}, so the bad batches have passed."
    if state.lowest <= MIN_USEFUL_SCALE:
        return f" The gradients are non-finite at any scale that was tried, down to {wording.scale(state.lowest)}."
    if state.weights_nonfinite >= state.opened.first:
        return f" The weights contain NaN or Inf, read at step {state.weights_nonfinite}."
    return " An overflow is still possible: no step has failed at a scale of 1 or less."


def _between(state: State) -> str:
    """Describes a collapse in which other steps were applied."""
    were = "was" if state.applied_between == 1 else "were"
    text = (
        f" From step {state.between_step} on {wording.count(state.applied_between, 'step')} between them {were}"
        " applied: the gradients of some batches are finite, those of others are not."
    )
    if state.resumed >= 0:
        text += f" Since step {state.resumed} steps are applied again."
    if state.weights_nonfinite >= state.opened.first:
        return f"{text} The weights contain NaN or Inf, read at step {state.weights_nonfinite}."
    if state.lowest > MIN_USEFUL_SCALE and not state.several:
        return f"{text} An overflow is still possible: no step has failed at a scale of 1 or less."
    return text


def _outlook(state: State) -> str:
    """Describes the effect of a further falling scale."""
    if state.constant or state.several or state.resumed >= 0:
        return ""
    if state.own:
        when = f"After {wording.count(state.steps_left, 'more skipped step')}" if state.steps_left else "Now"
        return f" {when} 1/scale is infinite in float32, and gradients multiplied by it become NaN."
    if state.steps_left:
        return (
            f" In {wording.count(state.steps_left, 'more skipped step')} 1/scale becomes infinite, and unscale_ turns"
            " finite gradients into NaN."
        )
    return " 1/scale is infinite now: unscale_ turns finite gradients into NaN, and GradScaler does not skip that."


def fix(state: State) -> str:
    opened, place = state.opened, state.frontier
    first = opened.first
    if state.weights_nonfinite >= first:
        return (
            "Check the last applied step before that for the reason, then the memory of the host and the GPU: the"
            " weights contain NaN or Inf themselves, which neither another batch nor a lower scale repairs. Continue"
            f" with {_new_scaler(state)}."
        )
    repair = (
        f"fix {place.module or 'the operation that makes the gradients non-finite'}: check it for an overflow, a"
        " division or a missing eps, or run it in float32"
    )
    if state.at_any_scale and place.count == 1 and place.tensor:
        return (
            f"Check what computes or changes the gradient of {place.tensor} and of no other tensor: a hook on it, or an"
            f" overflow in its sum over the batch. Against the latter, run {place.module} in float32, under"
            f" torch.autocast(device_type, enabled=False). Continue with {_new_scaler(state)}."
        )
    if state.resumed >= 0 or state.applied_between:
        return (
            f"Run one batch of the skipped steps from {first} to {opened.last} with"
            f" {'a loss scale of 1' if state.own else 'GradScaler(init_scale=1)'}. If its gradients"
            f" are finite, it was an overflow and the lower scale is right; if not, {repair}."
        )
    if state.lowest > MIN_USEFUL_SCALE or state.several:
        return (
            "Check whether steps are applied again before the scale has fallen to 1: then it was an overflow. If not,"
            f" {repair}, and continue with {_new_scaler(state)}."
        )
    return f"{wording.sentence(repair)}. A lower scale does not help: continue with {_new_scaler(state)}."


def _new_scaler(state: State) -> str:
    return "a new loss scale" if state.own else "a new GradScaler"
