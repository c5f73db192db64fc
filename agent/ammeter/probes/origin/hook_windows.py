"""Decides in which steps the modules get hooks: a limited number of short windows."""

from __future__ import annotations

WINDOW_STEPS = 5
"""Steps of a window after a bad step; a directive names its own steps."""

MIN_DISTANCE_STEPS = 100
"""Minimum number of steps between the starts of two windows, so that a persistent NaN does not cause one after another.

The next window may begin sooner after a window without a bad step, for example after the skips of a calibrating scale;
see was_empty().
"""

MAX_FREE_EMPTY_WINDOWS = 3
"""Windows without a bad step after which the next one may begin at once: the next bad step may be a real fault."""

MAX_WINDOWS = 10
"""Windows in a run, not counting those of directives."""


class HookWindows:
    """The windows of one run. A window begins with the first forward pass after request() at which it is due."""

    def __init__(self) -> None:
        self._remaining = MAX_WINDOWS
        self._requested_steps = 0
        self._due = 0
        self._ends = 0
        self._empty_windows = 0

    def request(self) -> bool:
        """Requests a window.

        Returns:
            False if none is pending and the run has had MAX_WINDOWS of them.
        """
        if self._remaining and not self._requested_steps:
            self._remaining -= 1
            self._requested_steps = WINDOW_STEPS
        return bool(self._requested_steps)

    def open(self, first: int, last: int) -> None:
        """Makes a window of these steps, without the minimum distance from the last one."""
        self._due, self._ends = first + MIN_DISTANCE_STEPS, max(self._ends, last + 1)

    def is_on(self, step: int) -> bool:
        """Whether this step is within a window; starts a requested window that is due."""
        if self._requested_steps and step >= max(self._due, self._ends):
            self._due, self._ends = step + MIN_DISTANCE_STEPS, step + self._requested_steps
            self._requested_steps = 0
        return step < self._ends

    def was_empty(self) -> None:
        """Lets the next window begin sooner, after a window without a bad step.

        The first MAX_FREE_EMPTY_WINDOWS such windows need no wait. Each one after them doubles the wait, which starts
        at WINDOW_STEPS.
        """
        self._empty_windows += 1
        waits = self._empty_windows - MAX_FREE_EMPTY_WINDOWS
        wait = WINDOW_STEPS * 2 ** (waits - 1) if waits > 0 else 0
        self._due = min(self._due, self._ends + wait)

    def is_last(self, step: int) -> bool:
        return step == self._ends - 1
