"""Checks the numbers of a finding's evidence against the oracle: norms, losses, scales, counts and shares.

A number that the text calls read, such as "in 3 readings", may be lower than the truth; any other one may not.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.wild.evidence import dynamics, loss_scale, nonfinite, ranks
from bench.wild.evidence.numbers import Check, Finding
from bench.wild.truth import Truth


def wrong_numbers(finding: Finding, truth: Truth, *, losses: bool = True) -> Iterator[str]:
    """The numbers of a finding's evidence that the oracle contradicts.

    Args:
        finding: The finding, as the report prints it.
        truth: What is known of the run and of the finding's rank.
        losses: Whether the recording has the whole loss of each step.
    """
    for check in CHECKS.get(finding["verdict"], ()):
        yield from check(finding, truth)
    if losses:
        for check in LOSS_CHECKS.get(finding["verdict"], ()):
            yield from check(finding, truth)


CHECKS: dict[str, tuple[Check, ...]] = {
    "gradient-spike": (dynamics.spike, loss_scale.scale_at_first),
    "diverged": (dynamics.divergence,),
    "stagnation": (dynamics.stagnation,),
    "sign-flip": (dynamics.reversal,),
    "no-gradients": (dynamics.zero_gradients,),
    "nonfinite-gradient": (nonfinite.bad_gradients,),
    "nonfinite-weights": (nonfinite.bad_weights,),
    "poisoned-buffers": (nonfinite.bad_buffers,),
    "scale-collapse": (loss_scale.collapse,),
    "overflow-storm": (loss_scale.storm,),
    "gradient-underflow": (loss_scale.underflow,),
    "scale-underflowed": (loss_scale.without_inverse,),
    "no-loss-scaling": (loss_scale.without_scaler,),
    "scheduler-ahead": (loss_scale.schedule,),
    "lopsided-step": (loss_scale.lopsided,),
    "ranks-disagree": (ranks.weights_of_ranks,),
    "half-reduction": (ranks.losses_of_ranks,),
    "run-lost": (ranks.last_step,),
    **dict.fromkeys(
        (
            "clip-before-unscale",
            "loss-not-scaled",
            "gradients-not-unscaled",
            "mixed-scale-gradients",
            "update-between-optimizers",
            "gradients-not-reset",
            "pointless-scaler",
            "scaler-rebuilt",
            "scaler-not-restored",
            "not-as-asked",
        ),
        (loss_scale.scales_of_call,),
    ),
}
"""Verdict -> checks of the numbers in its evidence."""

LOSS_CHECKS: dict[str, tuple[Check, ...]] = {
    "gradient-spike": (dynamics.loss_at_first, dynamics.loss_before),
    "diverged": (dynamics.first_loss, dynamics.loss_before, dynamics.loss_at_opening, dynamics.largest_loss),
    "stagnation": (dynamics.median_losses,),
    "sign-flip": (dynamics.loss_before,),
    "nonfinite-loss": (nonfinite.bad_losses,),
}
"""The same of numbers that need the whole loss of each step."""
