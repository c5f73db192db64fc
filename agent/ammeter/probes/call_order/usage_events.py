"""Reports each kind of mistake once, with the user's line and transferred numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

MAX_FIRST_CHECKS = 8

Check = Callable[[dict[str, Any]], bool]


class PendingEvent(msgspec.Struct):
    """An event with pending transfers.

    Attributes:
        confirm: decides from the arrived numbers whether the event is a mistake.
    """

    event: str
    data: dict[str, Any]
    numbers: dict[str, Transfer] = msgspec.field(default_factory=dict)
    confirm: Check = lambda _: True


class UsageEvents:
    """Adds events to the rows and remembers the kinds that were reported."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._emitted: set[str] = set()

    def was_emitted(self, kind: str) -> bool:
        return kind in self._emitted

    def emit_once(self, event: str, *, line: str = "", confirm: Check | None = None, **data: Any) -> None:
        """Reports an event in the open row, unless one of this kind was reported before.

        Args:
            line: place of the mistake; by default the user's present line.
            confirm: decides from the arrived numbers. An event that it rejects is dropped, and the next one of its kind
                is judged again.
            data: a tensor becomes a number. A function is replaced by its result after all earlier rows are finished.
        """
        if event in self._emitted:
            return
        self._emitted.add(event)
        row = self._session.row
        numbers = {name: _transfer(value) for name, value in data.items() if _is_pending(value)}
        plain = {name: value for name, value in data.items() if name not in numbers}
        pending = PendingEvent(
            event, {"caller": line or call_site.line(), **plain}, numbers, confirm or (lambda _: True)
        )
        row.urgent = True
        unconditional = confirm is None and not any(map(callable, plain.values()))
        if unconditional and all(number.ready() for number in numbers.values()):
            row.events.append(self._complete(pending))
            return
        row.raw.setdefault("usage", []).append(pending)
        for number in numbers.values():
            row.later("usage", number)

    def withdraw(self, event: str) -> None:
        """Drops an event of the open row whose numbers have not arrived; the row will not be finished."""
        waiting = self._session.row.raw.get("usage", [])
        if any(pending.event == event for pending in waiting):
            waiting[:] = [pending for pending in waiting if pending.event != event]
            self._emitted.discard(event)

    def finish(self, row: Row) -> None:
        if "usage" not in row.raw:
            return
        for pending in row.raw["usage"]:
            event, data = self._complete(pending)
            if pending.confirm(data):
                row.events.append((event, data))
            else:
                self._emitted.discard(event)

    def emit_in(self, row: Row, event: str, data: dict[str, Any]) -> None:
        """Reports an event once, in a row that is being finished."""
        if event not in self._emitted:
            self._emitted.add(event)
            row.events.append((event, data))

    def _complete(self, pending: PendingEvent) -> tuple[str, dict[str, Any]]:
        numbers = {name: float(transfer.array().reshape(-1)[0]) for name, transfer in pending.numbers.items()}
        known = {name: value() if callable(value) else value for name, value in pending.data.items()}
        return pending.event, {**known, **numbers}


def scale_of(scaler: Any) -> torch.Tensor | None:
    """The scale in effect, on its device; None before the first scale()."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None


def name_of(optimizer: Any) -> str:
    return type(optimizer).__name__


def is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def is_check_due(times: int) -> bool:
    """Whether to repeat a close check of a possibly harmless call.

    It is repeated the first MAX_FIRST_CHECKS times, then at powers of two.
    """
    return times <= MAX_FIRST_CHECKS or is_power_of_two(times)


def _is_pending(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (hasattr(value, "ready") and hasattr(value, "array"))


def _transfer(value: Any) -> Transfer:
    transfer: Transfer = async_copy.of(value) if isinstance(value, torch.Tensor) else value
    return transfer
