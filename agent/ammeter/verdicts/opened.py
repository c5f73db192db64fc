"""When a verdict was reached and whether it still holds: the part of the state that every verdict has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ammeter.verdicts.finding import Finding


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """first: the symptom's first step. step: where the verdict was reached. last: where it last held."""

    first: int = -1
    step: int = -1
    last: int = -1
    active: bool = False
    times: int = 0

    def at(self, first: int, step: int) -> Opened:
        """Reached at `step` for a symptom that began at `first`; while it is active it only goes on."""
        if self.active:
            return msgspec.structs.replace(self, last=step)
        return Opened(first, step, step, True, self.times + 1)

    def until(self, step: int) -> Opened:
        """Still held at `step`."""
        return msgspec.structs.replace(self, last=step) if self.active else self

    def over(self) -> Opened:
        """The run recovered from it."""
        return msgspec.structs.replace(self, active=False) if self.active else self


class State(Protocol):
    @property
    def opened(self) -> Opened: ...


def changed(conclude: Callable[[Any], Finding], before: State, after: State) -> Finding | None:
    """What is concluded from the state after, when that is not what was concluded before."""
    if after is before or not after.opened.times:
        return None
    found = conclude(after)
    return found if not before.opened.times or found != conclude(before) else None


def found(opened: Opened) -> dict[str, Any]:
    """The members of a Finding that come from here."""
    return {
        "first_step": opened.first,
        "opened_step": opened.step,
        "last_step": opened.last,
        "active": opened.active,
        "times": opened.times,
    }
