"""When a verdict was reached and whether it still holds; part of each verdict's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ammeter.verdicts.framework.finding import Finding


class Lifecycle(msgspec.Struct, frozen=True, array_like=True):
    """The steps at which a verdict was reached and at which it held.

    Attributes:
        first: First step of the symptom.
        step: Step at which the verdict was reached.
        last: Last step at which it held.
        earliest: First step of all episodes; -1 before the first one.
    """

    first: int = -1
    step: int = -1
    last: int = -1
    active: bool = False
    times: int = 0
    earliest: int = -1

    @property
    def since(self) -> str:
        """Returns 'since step 21'; a later episode also has the first episode's first step."""
        if self.times > 1 and 0 <= self.earliest < self.first:
            return f"since step {self.first}, for the {_ordinal(self.times)} time (the first began at {self.earliest})"
        return f"since step {self.first}"

    def at(self, first: int, step: int) -> Lifecycle:
        """Opens the verdict at `step` for a symptom that began at `first`.

        An active verdict only extends to `step`.
        """
        if self.active:
            return msgspec.structs.replace(self, last=step)
        earliest = first if self.earliest < 0 else min(self.earliest, first)
        return Lifecycle(first, step, step, True, self.times + 1, earliest)

    def until(self, step: int) -> Lifecycle:
        """Extends an active verdict to `step`."""
        return msgspec.structs.replace(self, last=step) if self.active else self

    def over(self) -> Lifecycle:
        """Closes the verdict after a recovery."""
        return msgspec.structs.replace(self, active=False) if self.active else self


class State(Protocol):
    @property
    def opened(self) -> Lifecycle: ...


def changed(conclude: Callable[[Any], Finding], before: State, after: State) -> Finding | None:
    """Returns the finding of the state `after`, if it differs from that of `before`."""
    if after is before or not after.opened.times:
        return None
    finding = conclude(after)
    return finding if not before.opened.times or finding != conclude(before) else None


def lifecycle_fields(opened: Lifecycle) -> dict[str, Any]:
    """Returns the fields of a Finding that come from the lifecycle."""
    return {
        "first_step": opened.first,
        "opened_step": opened.step,
        "last_step": opened.last,
        "active": opened.active,
        "times": opened.times,
        "earliest_step": opened.earliest,
    }


def _ordinal(number: int) -> str:
    """Returns '2nd', '3rd', '11th'."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
