"""When a verdict was reached and whether it still holds: the part of the state that every verdict has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ammeter.verdicts.framework.finding import Finding


class Lifecycle(msgspec.Struct, frozen=True, array_like=True):
    """first: the symptom's first step. step: where the verdict was reached. last: where it last held.

    earliest: the first step of all episodes; -1 before there was one.
    """

    first: int = -1
    step: int = -1
    last: int = -1
    active: bool = False
    times: int = 0
    earliest: int = -1

    @property
    def since(self) -> str:
        """'since step 21'; of a later episode with the step at which the first one began."""
        if self.times > 1 and 0 <= self.earliest < self.first:
            return f"since step {self.first}, for the {_ordinal(self.times)} time (the first began at {self.earliest})"
        return f"since step {self.first}"

    def at(self, first: int, step: int) -> Lifecycle:
        """Reached at `step` for a symptom that began at `first`; while it is active it only goes on."""
        if self.active:
            return msgspec.structs.replace(self, last=step)
        earliest = first if self.earliest < 0 else min(self.earliest, first)
        return Lifecycle(first, step, step, True, self.times + 1, earliest)

    def until(self, step: int) -> Lifecycle:
        """Still held at `step`."""
        return msgspec.structs.replace(self, last=step) if self.active else self

    def over(self) -> Lifecycle:
        """The run recovered from it."""
        return msgspec.structs.replace(self, active=False) if self.active else self


class State(Protocol):
    @property
    def opened(self) -> Lifecycle: ...


def changed(conclude: Callable[[Any], Finding], before: State, after: State) -> Finding | None:
    """What is concluded from the state after, when that is not what was concluded before."""
    if after is before or not after.opened.times:
        return None
    found = conclude(after)
    return found if not before.opened.times or found != conclude(before) else None


def lifecycle_fields(opened: Lifecycle) -> dict[str, Any]:
    """The members of a Finding that come from here."""
    return {
        "first_step": opened.first,
        "opened_step": opened.step,
        "last_step": opened.last,
        "active": opened.active,
        "times": opened.times,
        "earliest_step": opened.earliest,
    }


def _ordinal(number: int) -> str:
    """'2nd', '3rd', '11th'."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
