"""What the program itself says with run.log(...): losses, samples, and any number of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.stats import transfer

if TYPE_CHECKING:
    from ammeter.row import Row
    from ammeter.session import Session

MAX_NAMES = 256
"""Columns a program may add to its stream; further names are counted as lost, not written."""


class User:
    name = "user"

    def __init__(self, session: Session) -> None:
        self._session = session

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._log = guard(self.take)
        return []

    def log(self, values: dict[str, Any]) -> None:
        """values: column -> number or tensor with one element. They belong to the step that closed last."""
        self._log(values)

    def take(self, values: dict[str, Any]) -> None:
        row = self._session.loggable()
        for name, value in values.items():
            if self._session.column(name, MAX_NAMES):
                row.later(f"user:{name}", _arriving(value))

    def finish(self, row: Row) -> None:
        for key in row.transfers:
            if key.startswith("user:"):
                row.scalars[key.removeprefix("user:")] = float(row.arrived(key)[-1].mean())


def _arriving(value: Any) -> transfer.Transfer:
    if isinstance(value, torch.Tensor):
        return transfer.of(value)
    try:
        return transfer.number(float(value))
    except OverflowError:
        return transfer.number(math.inf if value > 0 else -math.inf)
