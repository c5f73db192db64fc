"""The effect of an update() between unscale_() and the step of the same optimizer."""

from __future__ import annotations

from ammeter.verdicts.framework import wording


def second_unscale(scale: float | None, before: float | None) -> str:
    """Describes gradients that GradScaler divides twice.

    Args:
        scale: The scale at the step.
        before: The scale at unscale_().
    """
    first = wording.scale(before) if before else "the loss scale"
    second = f"{wording.scale(scale)}, so they count 1 part in {scale:g}" if scale else "the loss scale"
    return (
        f"scaler.unscale_() had already divided these gradients by {first}. update() clears GradScaler's record of"
        f" that, so scaler.step() divides them again, by {second}."
    )
