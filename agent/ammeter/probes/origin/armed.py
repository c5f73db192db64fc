"""When the modules are looked at one by one: for a few steps after a bad one, or when asked to, and not for ever."""

from __future__ import annotations

STEPS = 5
"""Steps that a window lasts."""

EVERY = 100
"""Steps from one window to the next at least: a NaN that stays is not looked for again and again. After a window in
which nothing was bad, as behind the skips of a scale that calibrates, it is sooner, see was_in_vain()."""

FREE = 3
"""Windows in vain after which the next one does not wait: what comes then may be real, and is found at once."""

MOST = 10
"""Windows in a run, beside those that somebody asked for."""

LONGEST = 100
"""Steps that somebody can ask for at once, and how many times."""


class Armed:
    """Of one run. A window begins with the next forward pass after arm()."""

    def __init__(self) -> None:
        self._left = MOST
        self._left_to_ask = LONGEST
        self._wanted = 0
        self._due = 0
        self._ends = 0
        self._in_vain = 0

    def arm(self) -> bool:
        """Wants a window. False when there were enough of them."""
        if self._left and not self._wanted:
            self._left -= 1
            self._wanted = STEPS
        return bool(self._wanted)

    def ask(self, steps: int) -> None:
        """Wants a window with the next step, whenever the last one was."""
        if self._left_to_ask:
            self._left_to_ask -= 1
            self._wanted, self._due = min(max(1, steps), LONGEST), 0

    def is_on(self, step: int) -> bool:
        """Whether this step is within a window, which begins here when one is wanted and due."""
        if self._wanted and step >= max(self._due, self._ends):
            self._due, self._ends = step + EVERY, step + self._wanted
            self._wanted = 0
        return step < self._ends

    def was_in_vain(self) -> None:
        """Nothing was bad in the window that has just ended: the next one looks at something new."""
        self._in_vain += 1
        wait = 0 if self._in_vain <= FREE else STEPS * 2 ** (self._in_vain - FREE - 1)
        self._due = min(self._due, self._ends + wait)

    def is_last(self, step: int) -> bool:
        return step == self._ends - 1
