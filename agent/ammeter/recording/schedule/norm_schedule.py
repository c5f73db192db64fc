"""Selects steps in which gradient norms have to be read, in addition to those that the budget allows.

- While `interval` is set, at least one of so many consecutive steps is read.
- Verdicts compare neighbouring steps, so readings come in pairs of consecutive steps: each reading that follows an
  unread step, or, while `interval` is set, every PAIR_INTERVAL-th of them.
- After a jump of the loss, a skipped step or a change of the loss scale, the next norms are read at once; the spectrum
  of exponents is read with them after a skipped step or a change of the scale.
- When the loss falls by a factor that learning does not explain, all statistics of the next gradients are read: their
  loss has another weight, with which they may underflow.
- Gradients that the program changes while they are scaled, unlike in the step before, are read, too.

Requests are limited in number, so that they cost little in a run whose loss jumps, or which skips, in every step.
"""

from __future__ import annotations

PAIR_INTERVAL = 8
"""Every eighth guaranteed reading is followed by the next step: in every second step, one pair in 16 steps."""

MIN_JUMP_INTERVAL_STEPS = 16
MIN_SPECTRUM_INTERVAL_STEPS = 32
"""Minimum number of steps between two requests of a kind. The first doubling after a skip usually follows much later;
in an overflow storm each step would request a spectrum, about 0.3 ms."""


MIN_FALL_INTERVAL_STEPS = 128
FALL_STEPS = 4
"""Minimum number of steps between two such requests, and steps that each of them covers: one more than a verdict on
underflow needs, because the readings begin with the step that falls."""


class NormSchedule:
    """The steps of one session whose norms have to be read.

    Attributes:
        interval: at least one of so many consecutive steps is read; 0 for no guarantee.
    """

    def __init__(self) -> None:
        self.interval = 0
        self._last = -1
        self._required_until = -1
        """The last step that has to be read; from here to the last reading, all are."""
        self._gaps = 0
        self._jumped_at = -MIN_JUMP_INTERVAL_STEPS
        self._fell_at = -MIN_FALL_INTERVAL_STEPS
        self._spectrum_from = -MIN_SPECTRUM_INTERVAL_STEPS
        self._spectrum_until = -1

    def must_read(self, step: int) -> bool:
        return step <= self._required_until or 0 < self.interval <= step - self._last

    def read(self, step: int) -> None:
        """Records that the norms of this step are read; a reading after an unread step may require the next one."""
        if step - self._last > 1:
            self._gaps += 1
            if not self.interval or self._gaps % PAIR_INTERVAL == 0:
                self._required_until = max(self._required_until, step + 1)
        self._last = step

    def loss_jumped(self, step: int) -> bool:
        """Requires the norms of this step and of the next one; returns whether it did."""
        if step - self._jumped_at < MIN_JUMP_INTERVAL_STEPS:
            return False
        self._jumped_at = step
        self._required_until = max(self._required_until, step + 1)
        return True

    def loss_fell(self, step: int) -> None:
        """Requires all statistics of the gradients of this step and of the next ones."""
        if step - self._fell_at >= MIN_FALL_INTERVAL_STEPS:
            self._fell_at = step
            self._required_until = max(self._required_until, step + FALL_STEPS - 1)

    def must_read_all(self, step: int) -> bool:
        """Whether all statistics of this step's gradients have to be read."""
        return 0 <= step - self._fell_at < FALL_STEPS

    def gradients_changed(self, step: int) -> None:
        """Requires the norms of this step, whose gradients the program has changed while they were scaled."""
        self.read_until(step)

    def read_until(self, step: int) -> None:
        """Requires the norms of all steps up to this one."""
        self._required_until = max(self._required_until, step)

    def scale_changed(self, step: int) -> None:
        """Requires norms and spectrum of this step, the first one with the new scale."""
        self._request_spectrum(step, step)

    def skipped(self, step: int, open_step: int = 0) -> None:
        """Requires norms and spectrum of a skipped step and of the next one.

        Args:
            open_step: the present step, if the skip became known later.
        """
        self._request_spectrum(step, max(step + 1, open_step))

    def takes_spectrum(self, step: int, *, is_skipped: bool = False) -> bool:
        """Whether the spectrum is read in this step.

        Args:
            is_skipped: whether its gradients are not finite, so that the scaler is going to skip it.
        """
        if is_skipped:
            self.skipped(step)
        return self._spectrum_from <= step <= self._spectrum_until

    def _request_spectrum(self, first: int, last: int) -> None:
        if first - self._spectrum_from >= MIN_SPECTRUM_INTERVAL_STEPS:
            self._spectrum_from, self._spectrum_until = first, last
            self._required_until = max(self._required_until, last)
