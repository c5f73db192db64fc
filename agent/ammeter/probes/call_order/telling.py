"""Reports each kind of mistake once, with the user's line and transferred numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

AT_FIRST = 8

Check = Callable[[dict[str, Any]], bool]


@dataclass
class Waiting:
    """An event with pending transfers.

    Attributes:
        holds: decides from the arrived numbers whether the event is a mistake.
    """

    event: str
    data: dict[str, Any]
    numbers: dict[str, Transfer] = field(default_factory=dict)
    holds: Check = lambda _: True


class Telling:
    """Adds events to the rows and remembers the kinds that were reported."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._told: set[str] = set()

    def told(self, kind: str) -> bool:
        return kind in self._told

    def once(self, event: str, *, line: str = "", holds: Check | None = None, **data: Any) -> None:
        """Reports an event in the open row, unless one of this kind was reported before.

        Args:
            line: place of the mistake; by default the user's present line.
            holds: decides from the arrived numbers. An event that it rejects is dropped, and the next one of its kind
                is judged again.
            data: a tensor becomes a number. A function is replaced by its result after all earlier rows are finished.
        """
        if event in self._told:
            return
        self._told.add(event)
        row = self._session.row
        numbers = {name: _arriving(value) for name, value in data.items() if _is_late(value)}
        plain = {name: value for name, value in data.items() if name not in numbers}
        waiting = Waiting(event, {"caller": line or call_site.line(), **plain}, numbers, holds or (lambda _: True))
        row.urgent = True
        settled = holds is None and not any(map(callable, plain.values()))
        if settled and all(number.ready() for number in numbers.values()):
            row.events.append(self._complete(waiting))
            return
        row.raw.setdefault("usage", []).append(waiting)
        for number in numbers.values():
            row.later("usage", number)

    def finish(self, row: Row) -> None:
        if "usage" not in row.raw:
            return
        for waiting in row.raw["usage"]:
            event, data = self._complete(waiting)
            if waiting.holds(data):
                row.events.append((event, data))
            else:
                self._told.discard(event)

    def late(self, row: Row, event: str, data: dict[str, Any]) -> None:
        """Reports an event once, in a row that is being finished."""
        if event not in self._told:
            self._told.add(event)
            row.events.append((event, data))

    def _complete(self, waiting: Waiting) -> tuple[str, dict[str, Any]]:
        numbers = {name: float(transfer.array().reshape(-1)[0]) for name, transfer in waiting.numbers.items()}
        known = {name: value() if callable(value) else value for name, value in waiting.data.items()}
        return waiting.event, {**known, **numbers}


def scale_of(scaler: Any) -> torch.Tensor | None:
    """The scale in effect, on its device; None before the first scale()."""
    found = getattr(scaler, "_scale", None)
    return found if isinstance(found, torch.Tensor) else None


def name_of(optimizer: Any) -> str:
    return type(optimizer).__name__


def is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def is_due(times: int) -> bool:
    """Whether to repeat a close check of a possibly harmless call.

    It is repeated the first AT_FIRST times, then at powers of two.
    """
    return times <= AT_FIRST or is_power_of_two(times)


def _is_late(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (hasattr(value, "ready") and hasattr(value, "array"))


def _arriving(value: Any) -> Transfer:
    arriving: Transfer = async_copy.of(value) if isinstance(value, torch.Tensor) else value
    return arriving
