"""Title, cause and fix of a gradient-spike finding."""

from __future__ import annotations

from ammeter.verdicts.dynamics.spike_episode import State
from ammeter.verdicts.framework import wording

MAX_SCALED_NORM = 2.0**-14
"""Smallest normal float16. If the norm times the loss scale is below it, most elements round to zero."""

MAX_USUAL_LOSS = 1.5
"""Largest ratio of a loss to those before at which it is called hardly changed; batches differ by so much."""


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
        losses = f"{state.loss:.4g} at that step and {state.loss_before:.4g} before"
        is_usual = _is_loss_usual(state)
        loss = f" The loss{which} hardly changed: {losses}." if is_usual else f" The loss{which} was {losses}."
    return (
        f"At step {state.first} the norm of the gradients jumped from about {state.usual:.3g} to as much as"
        f" {state.norm:.3g}. It was far above its usual range in {wording.count(state.far, 'reading')}.{largest}{loss}"
    )


def _is_loss_usual(state: State) -> bool:
    """Whether the loss of the step was read, and is far from explaining the norm."""
    return state.loss_known and 0 < state.loss_before and state.loss < MAX_USUAL_LOSS * state.loss_before


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
        f"The clip at {state.clip:g} already limits the size of such steps, though not their direction."
        if state.clip
        else "Limit the size of such steps before optimizer.step():"
        f" torch.nn.utils.clip_grad_norm_(model.parameters(), {2 * state.usual:.2g})."
    )
    suspects = (
        "what makes gradients steep at a usual loss: a weight or a factor that the recorded loss lacks, or a division"
        " by a very small number"
        if _is_loss_usual(state)
        else "damaged or mislabelled samples, and for a term of the loss that begins there"
    )
    return f"Check the batches from step {state.first} on for {suspects}. {limit}"


def _fix_fall(state: State) -> str:
    if _is_lost_by_scale(state):
        return (
            "Set the loss scale to its first value again, and remove the cause of the skipped steps that lowered it."
            f" The scale was too small before step {state.first} already."
        )
    return (
        f"Check the changes at step {state.first}: a mask or a weight that makes the loss constant, a detach() or"
        " no_grad() between the weights and the loss, or saturated activations."
    )
