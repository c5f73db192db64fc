"""Title, cause and fix of a gradient-spike finding."""

from __future__ import annotations

from ammeter.verdicts.dynamics.spike_episode import State
from ammeter.verdicts.framework import wording

MAX_SCALED_NORM = 2.0**-14
"""Smallest normal float16. If the norm times the loss scale is below it, most elements round to zero."""


def title(state: State) -> str:
    if state.up:
        return f"The gradient norm jumps to {_ratio(state)} times its usual value"
    return "The gradient norm falls to almost zero"


def cause(state: State) -> str:
    return _rise(state) if state.up else _fall(state)


def fix(state: State) -> str:
    return _fix_rise(state) if state.up else _fix_fall(state)


def _ratio(state: State) -> str:
    ratio = state.norm / state.usual
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _rise(state: State) -> str:
    largest = f" {state.tensor} has the largest gradient norm." if state.tensor else ""
    which = wording.of_loss(state.column)
    loss = ""
    if state.loss_known:
        loss = f" The loss{which} was {state.loss:.4g} at that step and {state.loss_before:.4g} before."
    return (
        f"At step {state.first} the norm of the gradients jumped from about {state.usual:.3g} to as much as"
        f" {state.norm:.3g} ({_ratio(state)} times). It was far above its usual range in"
        f" {wording.count(state.far, 'reading')}.{largest}{loss}"
    )


def _fall(state: State) -> str:
    norm = f"{state.norm:.3g} or less" if state.norm else "0"
    scale = ""
    if _is_lost_by_scale(state):
        scale = f" The loss scale was {state.scale:.3g} then: gradients times this scale round to zero in float16."
    return (
        f"From step {state.first} on the norm of the gradients is {norm}, where it had been about"
        f" {state.usual:.3g}, so the steps hardly learn. This was read {wording.count(state.far, 'time')}, while the"
        f" loss{wording.of_loss(state.column)} was {state.loss:.4g}.{scale}"
    )


def _is_lost_by_scale(state: State) -> bool:
    return 0 < state.scale < 1 and state.scale * state.usual < MAX_SCALED_NORM


def _fix_rise(state: State) -> str:
    limit = (
        f"The present clip at {state.clip:g} limits the size of the step, not its direction."
        if state.clip
        else f"Limit the norm: torch.nn.utils.clip_grad_norm_(model.parameters(), {2 * state.usual:.2g})."
    )
    return (
        f"Check the batch and the changes at step {state.first}: data, learning rate, a term of the loss. {limit} If"
        f" the loss does not come down again, restore a checkpoint from before step {state.first}, leave that batch"
        " out, and continue with a third of the learning rate."
    )


def _fix_fall(state: State) -> str:
    if _is_lost_by_scale(state):
        return (
            "Set the loss scale to its first value again, and remove the cause of the skipped steps that lowered it."
            f" The scale was too small before step {state.first} already."
        )
    return (
        f"Check the changes at step {state.first}: a mask or a weight that makes the loss constant, a detach() or"
        " no_grad() between the weights and the loss, or saturated activations. If the weights changed there, restore"
        f" a checkpoint from before step {state.first}."
    )
