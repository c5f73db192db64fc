"""Keeps the loss scale where gradients do not overflow: backs off faster than GradScaler.

It also ends growth into repeated overflows.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ammeter.guards.runner import known, known_scale
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks.targets import gradients
from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.verdicts.loss_scale import overflow_storm

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner, Update

CEILING = 2.0**24
"""The largest scale, as in NVIDIA's apex (max_loss_scale)."""

MARGIN = 2.0
"""Factor that the largest gradient leaves below 65504: one bit.

In 120 provoked overflows at most one bit was left (docs/verdicts.md, nonfinite-gradient).
"""

HOLD = 2000
"""Good steps before a scale that overflowed is retried: GradScaler's own growth_interval."""

AGAIN = overflow_storm.WINDOW // overflow_storm.SKIPS
"""Steps within which a second overflow after growth shows that the scale grows too eagerly.

Such growth wastes the 4 % of the work that overflow-storm reports. Growth that costs less is normal
in a healthy run and left to GradScaler.
"""

NEAR, EVERY, KEPT = 8, 64, 8
"""Gradients are read at every 64th step and in the 8 before growth.

The largest of 8 readings counts.
"""


@dataclass
class Course:
    """The state of one scaler.

    calibrated: a step was applied. worked: the scale of the last good step. skips: skips in a row. rose: whether the
    scale grew since the last overflow, at step `overflowed`. limit: maximum scale for `held` more good steps. peaks:
    largest |gradient| of the last readings, unscaled. open: whether gradients have this step's scale already. held_at:
    scales at which it was held, each reported once.
    """

    calibrated: bool = False
    worked: float | None = None
    skips: int = 0
    rose: bool = False
    overflowed: int = -AGAIN
    limit: float = math.inf
    held: int = 0
    steps: int = 0
    peaks: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    open: bool = False
    held_at: set[float] = field(default_factory=set)


class Scale:
    """Acts in GradScaler.update(), and in scale() if the program has set an impossible scale.

    Until the first applied step only the floor applies. Then the second skip in a row, and each later one, quarters the
    scale, unless gradients are NaN without Inf at a scale that had worked. From the third on it is set to the value
    that the last read gradients bear. A scale that grew into overflows twice within 25 steps is held for 2000 good
    steps: below the value that overflowed, and at a value that leaves the margin for the last read gradients. A scale
    outside of floor and ceiling that the program has set is reset to the last one that worked.

    floor, ceiling: bounds of the scale. margin: factor that the largest gradient leaves below 65504. hold: good steps
    until a scale that overflowed is retried. With several ranks the guard uses only values that all ranks share, and
    does not read gradients. On a device it never waits for values: the second skip quarters the scale, floor and
    ceiling are enforced, and GradScaler does the rest.

    Raises ValueError for invalid numbers.
    """

    name = "scale"

    def __init__(
        self, *, floor: float = 1.0, ceiling: float = CEILING, margin: float = MARGIN, hold: int = HOLD
    ) -> None:
        if not 1 <= floor <= ceiling < math.inf:
            raise ValueError(f"floor is {floor!r}, ceiling {ceiling!r}; use 1 <= floor <= ceiling, such as 1 and 2**24")
        if not 1 <= margin < math.inf:
            raise ValueError(f"margin is {margin!r}; use a factor of 1 or more, such as 2")
        if hold < 1:
            raise ValueError(f"hold is {hold!r}; use a number of steps, such as 2000")
        self.floor, self.ceiling, self.margin, self.hold = float(floor), float(ceiling), float(margin), hold

    def attach(self, duty: GuardRunner) -> None:
        self._duty = duty
        self._courses: weakref.WeakKeyDictionary[torch.amp.GradScaler, Course] = weakref.WeakKeyDictionary()

    def scaling(self, scaler: torch.amp.GradScaler) -> None:
        """Runs before the first scale() of a step. Later calls must use the same scale."""
        course = self._course(scaler)
        if course.open:
            return
        course.open = True
        if scaler._scale is None:
            return
        scale = known_scale(scaler)
        if scale is None:
            _limit(scaler, self.floor, self.ceiling)
        elif scale < self.floor or (scale > self.ceiling and course.calibrated):
            fallback = self.floor if scale < self.floor else self.ceiling
            self._set(scaler, scale, course.worked or fallback, "restored", _OUTSIDE)

    def unscaling(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Reads gradients at intervals, while they are scaled and not yet clipped."""
        course, scale = self._course(scaler), known_scale(scaler)
        if scale is None or not scale > 0 or not self._duty.alone:
            return
        tracker = None if scaler._growth_tracker is None else known(scaler._growth_tracker)
        near = tracker is not None and tracker + NEAR >= scaler.get_growth_interval()
        if near or course.steps % EVERY == 0:
            peak = _largest(self._duty.session.watched.parameters(optimizer)[0])
            if math.isfinite(peak):
                course.peaks.append(peak / scale)

    def updated(self, update: Update) -> None:
        course = self._course(update.scaler)
        course.open = False
        course.steps += 1
        if update.given:
            return
        course.skips = course.skips + 1 if update.overflow else 0
        course.calibrated = course.calibrated or not update.overflow
        if update.before is None or update.after is None:
            self._on_device(update.scaler, course)
        elif update.overflow:
            self._skipped(update.scaler, course, update.before, update.after)
        else:
            self._applied(update.scaler, course, update.before, update.after)

    def _on_device(self, scaler: torch.amp.GradScaler, course: Course) -> None:
        if course.skips == 2 and course.calibrated:
            self._duty.tell(self, "backed off", "two steps in a row were skipped", **{"from": None, "to": None})
        scale = scaler._scale
        if course.skips >= 2 and course.calibrated and scale is not None:
            unseen(lambda: scale.mul_(0.5), (scale,))
        _limit(scaler, self.floor, self.ceiling)

    def _skipped(self, scaler: torch.amp.GradScaler, course: Course, before: float, after: float) -> None:
        step = self._duty.step
        eager = course.skips == 1 and course.rose and step - course.overflowed < AGAIN
        if eager:
            self._hold(course, before)
        elif course.skips == 1 and before <= course.limit < math.inf:
            course.limit = max(self.floor, before / 2)
        if course.skips == 1:
            course.overflowed, course.rose = step, False
        target = max(after, self.floor)
        if eager:
            target = max(self.floor, min(after, self._bearable(course)))
        elif course.skips > 1 and course.worked is not None and (before > course.worked or self._has_inf()):
            target = max(self.floor, min(after, before / 4, self._bearable(course) if course.skips > 2 else math.inf))
        if target == self.floor and before <= self.floor:
            self._set(scaler, after, target, "held", "it is at its floor, and steps are skipped whatever it is")
        elif target != after:
            reason = _EAGER if eager else f"{course.skips} steps in a row were skipped"
            self._set(scaler, after, target, "backed off", reason)

    def _applied(self, scaler: torch.amp.GradScaler, course: Course, before: float, after: float) -> None:
        course.worked = before
        if course.held:
            course.held -= 1
            course.limit = course.limit if course.held else math.inf
        if after <= before:
            return
        course.rose = True
        bearable = self._bearable(course) if course.held else math.inf
        allowed = min(self.ceiling, course.limit, bearable)
        if after > allowed:
            reason = (
                f"gradients of up to {max(course.peaks):.3g} would leave less than a factor of {self.margin:g} to 65504"
                if allowed == bearable
                else f"gradients overflowed at {2 * course.limit:g}; {_EAGER}"
                if allowed == course.limit
                else "it is the ceiling"
            )
            self._set(scaler, after, max(before, allowed), "held", reason)

    def _hold(self, course: Course, overflowed: float) -> None:
        """Keeps the scale below the one that overflowed for `hold` good steps."""
        course.limit = max(self.floor, min(course.limit, overflowed / 2))
        course.held = self.hold

    def _bearable(self, course: Course) -> float:
        """Returns the largest scale, a power of two, that leaves the last gradients their margin."""
        peak = max(course.peaks, default=0.0)
        return 2.0 ** math.floor(math.log2(FLOAT16_MAX / (self.margin * peak))) if peak > 0 else math.inf

    def _has_inf(self) -> bool:
        """Whether a gradient is Inf.

        NaN without Inf at a scale that had worked is no overflow: no scale prevents it, and GradScaler's halving
        suffices. With several ranks the Inf may be on one rank only, and all must act the same, so True is assumed.
        """
        if not self._duty.alone:
            return True
        watched = self._duty.session.watched
        found = [
            gradient for optimizer in watched.optimizers for gradient in gradients(watched.parameters(optimizer)[0])
        ]
        here = [gradient for gradient in found if gradient is not None]
        return unseen(lambda: any(bool(torch.isinf(gradient).any()) for gradient in here), here)

    def _set(self, scaler: torch.amp.GradScaler, before: float, after: float, action: str, reason: str) -> None:
        """Sets the scale as update(new_scale) would, but without counting another update."""
        scale = scaler._scale
        assert scale is not None
        unseen(lambda: scale.fill_(after), (scale,))
        course = self._course(scaler)
        if action != "held" or after not in course.held_at:
            self._duty.tell(self, action, reason, **{"from": before, "to": after})
        if action == "held":
            course.held_at.add(after)

    def _course(self, scaler: torch.amp.GradScaler) -> Course:
        course = self._courses.get(scaler)
        if course is None:
            course = self._courses[scaler] = Course()
        return course


def _largest(parameters: list[torch.Tensor]) -> float:
    """Returns the largest gradient magnitude; not finite if a gradient is not finite."""
    found = [gradient for gradient in gradients(parameters) if gradient is not None]

    def read() -> float:
        extremes = [torch.aminmax(gradient) for gradient in found]
        return max((max(-float(low), float(high)) for low, high in extremes), default=math.nan)

    return unseen(read, found)


def _limit(scaler: torch.amp.GradScaler, floor: float, ceiling: float) -> None:
    """Clamps a scale that only the device knows, without waiting.

    It stays as it is within the bounds.
    """
    scale = scaler._scale
    assert scale is not None
    unseen(lambda: scale.clamp_(floor, ceiling), (scale,))


_EAGER = f"it grew into overflows twice within {AGAIN} steps"
_OUTSIDE = "the program has set a scale outside of floor and ceiling, with which a step would be lost or poisoned"
