"""Decides in which steps the modules get hooks: a limited number of short windows."""

from __future__ import annotations

STEPS = 5
"""Steps of a window after a bad step; a directive gives its own number."""

EVERY = 100
"""Minimum number of steps between the starts of two windows, so that a persistent NaN does not cause one after another.

The next window may begin sooner after a window without a bad step, for example after the skips of a calibrating scale;
see was_in_vain().
"""

FREE = 3
"""Windows in vain after which the next one may begin at once, because the next bad step may be a real fault."""

MOST = 10
"""Windows in a run, not counting those that a directive asked for."""

LONGEST = 100
"""Steps that one directive can ask for, and also the number of such directives that a run accepts."""


class Armed:
    """The windows of one run. A window begins with the first forward pass after arm() at which it is due."""

    def __init__(self) -> None:
        self._left = MOST
        self._left_to_ask = LONGEST
        self._wanted = 0
        self._due = 0
        self._ends = 0
        self._in_vain = 0

    def arm(self) -> bool:
        """Requests a window.

        Returns:
            False if none is pending and the run has had MOST of them.
        """
        if self._left and not self._wanted:
            self._left -= 1
            self._wanted = STEPS
        return bool(self._wanted)

    def ask(self, steps: int) -> None:
        """Requests a window with the next step, without the minimum distance from the last one."""
        if self._left_to_ask:
            self._left_to_ask -= 1
            self._wanted, self._due = min(max(1, steps), LONGEST), 0

    def is_on(self, step: int) -> bool:
        """Whether this step is within a window; starts a requested window that is due."""
        if self._wanted and step >= max(self._due, self._ends):
            self._due, self._ends = step + EVERY, step + self._wanted
            self._wanted = 0
        return step < self._ends

    def was_in_vain(self) -> None:
        """Lets the next window begin sooner, after a window without a bad step.

        The first FREE such windows need no wait. Each one after them doubles the wait, which starts at STEPS.
        """
        self._in_vain += 1
        wait = 0 if self._in_vain <= FREE else STEPS * 2 ** (self._in_vain - FREE - 1)
        self._due = min(self._due, self._ends + wait)

    def is_last(self, step: int) -> bool:
        return step == self._ends - 1
