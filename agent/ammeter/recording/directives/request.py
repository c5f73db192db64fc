"""One reading that a person has asked for, from its acceptance to its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from ammeter.recording.row import Row


class Request(msgspec.Struct):
    """A directive that a probe carries out.

    Attributes:
        id: the collector's name of the directive; '' from an older collector.
        first, last: steps that it covers. A probe that has its answer lowers `last`.
        read_steps: covered steps in which something was read.
        seconds: time in Ammeter during the covered steps.
        step_seconds: duration of these steps.
        facts: the answer so far.
    """

    id: str
    arm: str
    first: int
    last: int
    covered_steps: int = 0
    read_steps: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)

    def covers(self, step: int) -> bool:
        return self.first <= step <= self.last

    def end(self, step: int) -> None:
        """Ends the request with this step."""
        self.last = min(self.last, step)

    def count(self, fact: str, number: int = 1) -> None:
        """Adds to a fact that is a number."""
        self.facts[fact] = self.facts.get(fact, 0) + number

    def answer(self) -> dict[str, Any]:
        """Returns the data of the event that answers the request."""
        return {
            "id": self.id,
            "arm": self.arm,
            "first_step": self.first,
            "steps": self.covered_steps,
            "read_steps": self.read_steps,
            "seconds": self.seconds,
            "step_seconds": self.step_seconds,
            **self.facts,
        }


def accepts(_: Request) -> str:
    return ""


def nothing(*_: Any) -> None:
    pass


class Arm(NamedTuple):
    """What a probe does for one kind of directive.

    Attributes:
        probe: name of the probe.
        begin: starts the reading; returns the reason if it cannot, else ''.
        add: adds a finished row of the covered steps to the answer.
        end: ends the reading, before its answer is written.
    """

    probe: str
    begin: Callable[[Request], str] = accepts
    add: Callable[[Request, Row], None] = nothing
    end: Callable[[Request], None] = nothing
