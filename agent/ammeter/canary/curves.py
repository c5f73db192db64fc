"""Compares the loss and the gradient norm of two runs at the steps of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.wire.columns import Floats

MIN_STEPS = 20
"""Fewer steps show no more than their noise; the comparison of speeds needs as many after its warm-up."""

COMPARED_SHARE = 0.25
"""The last quarter of the common steps is compared: an effect on the training adds up, and is largest there."""

MAX_LOSS_SHARE = 0.05
"""Five times the limit of validation-drift, as the loss of single batches varies more than a validation."""

MAX_NORM_RATIO = 2.0
"""One power of two, the distance of two neighbouring loss scales."""

SAME_START_SHARE = 0.02
"""Rounding to bfloat16 changes a first loss by up to a part in 256; another seed changes it by more."""

TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal float32, in place of a zero divisor."""

OTHER_SEED_FACTOR = 2
"""As in validation-drift: two runs that do not start alike may differ by twice as much."""


@dataclass(frozen=True)
class LossDifference:
    """The losses of the last quarter of the common steps.

    Attributes:
        steps: number of common steps.
        run, baseline: means, where both are finite.
        share: their difference, as a share of the baseline's median or of what it has fallen, whichever is larger.
        of_fall: whether that is what it has fallen.
        limit: of that share.
        clear: whether three quarters of the differences have its sign.
        first_nonfinite: first step with a loss that is finite in the baseline only; None without one.
        start_share: relative difference of the first losses.
    """

    steps: int
    run: float
    baseline: float
    share: float
    of_fall: bool
    limit: float
    clear: bool
    first_nonfinite: int | None
    start_share: float

    @property
    def differs(self) -> bool:
        return self.first_nonfinite is not None or (abs(self.share) > self.limit and self.clear)

    @property
    def starts_alike(self) -> bool:
        return self.start_share <= SAME_START_SHARE


@dataclass(frozen=True)
class NormDifference:
    """Gradient norms of the last quarter of the common steps, where both are finite and above 0.

    Attributes:
        ratio: median of the run's norm as a multiple of the baseline's.
        clear: whether three quarters of the ratios are beyond 1 on the same side.
    """

    steps: int
    ratio: float
    clear: bool

    @property
    def differs(self) -> bool:
        return self.clear and not 1 / MAX_NORM_RATIO <= self.ratio <= MAX_NORM_RATIO


def loss_difference(pair: RunComparison) -> LossDifference | None:
    """Compares the losses; None for fewer than MIN_STEPS common steps with a finite loss of the baseline."""
    steps, mine, theirs = pair.run.curve("loss").with_common(pair.baseline.curve("loss"))
    finite = np.isfinite(theirs)
    steps, mine, theirs = steps[finite], mine[finite].astype(np.float64), theirs[finite].astype(np.float64)
    if len(steps) < MIN_STEPS:
        return None
    bad = np.flatnonzero(~np.isfinite(mine))
    both = np.isfinite(mine)
    last = slice(-max(5, int(len(steps) * COMPARED_SHARE)), None)
    late, normal = mine[last][both[last]], theirs[last][both[last]]
    end = float(np.median(theirs[last]))
    fallen = abs(float(np.median(theirs[: len(theirs[last])])) - end)
    extent = max(abs(end), fallen, TINY)
    means = [float(np.mean(values)) if len(values) else float("nan") for values in (late, normal)]
    start = abs(float(mine[0]) - float(theirs[0])) / max(abs(float(theirs[0])), TINY)
    alike = np.isfinite(start) and start <= SAME_START_SHARE
    return LossDifference(
        steps=len(steps),
        run=means[0],
        baseline=means[1],
        share=(means[0] - means[1]) / extent,
        of_fall=fallen > abs(end),
        limit=MAX_LOSS_SHARE if alike else MAX_LOSS_SHARE * OTHER_SEED_FACTOR,
        clear=_one_sided(late - normal),
        first_nonfinite=int(steps[bad[0]]) if bad.size else None,
        start_share=start,
    )


def norm_difference(pair: RunComparison, column: str) -> NormDifference | None:
    """Compares the gradient norms; None for fewer than MIN_STEPS common steps with both."""
    _, mine, theirs = pair.run.curve(column).with_common(pair.baseline.curve(column))
    usable = np.isfinite(mine) & np.isfinite(theirs) & (mine > 0) & (theirs > 0)
    if usable.sum() < MIN_STEPS:
        return None
    logs = np.log2(mine[usable].astype(np.float64) / theirs[usable])[-max(5, int(usable.sum() * COMPARED_SHARE)) :]
    return NormDifference(int(usable.sum()), float(2 ** np.median(logs)), _one_sided(logs))


def _one_sided(differences: Floats | np.typing.NDArray[np.float64]) -> bool:
    """Whether three quarters of the differences are above 0, or below."""
    if not len(differences):
        return False
    return bool(np.quantile(differences, 0.25) > 0 or np.quantile(differences, 0.75) < 0)
