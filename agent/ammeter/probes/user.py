"""Records the values that the program passes to run.log(...): losses, samples or other numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import has_numbers

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

log = logging.getLogger("ammeter")

MAX_NAMES = 256
"""Columns that a program may add to its stream; each further name is not written but logged once."""

MAX_LOGGED_NAMES = 20
"""Rejected names that are logged, because a program may invent new names in every step."""


class User:
    name = "user"
    any_thread = True

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._rejected: set[str] = set()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._log, self._log_at = guard(self._record), guard(self._record_at)
        return []

    def log(self, values: dict[str, Any]) -> None:
        """Records values for the last closed step, or the open step while it runs.

        Args:
            values: column -> number or tensor with one element.
        """
        self._log(values)

    def _record(self, values: dict[str, Any]) -> None:
        transfers = {name: _transfer(value) for name, value in values.items()}
        columns = self._session.columns.add([name for name, transfer in transfers.items() if transfer], MAX_NAMES)
        session, row = self._session, self._session.rows.loggable()
        is_early = session.working and not (session.row.stepped or session.row.skipped)
        session.fast_path.learn_logged(transfers, is_early=is_early)
        late_values: dict[str, float] = {}
        for name, transfer in transfers.items():
            if transfer is None:
                self._warn_once(name, f"it is a {type(values[name]).__name__}; use a number or a tensor")
            elif name not in columns:
                self._warn_once(name, f"the run already logs {MAX_NAMES} names; use fewer")
            elif row is None and transfer.ready():
                late_values[name] = float(transfer.array().mean())
            else:
                (row or self._session.row).later(f"user:{name}", transfer)
        if late_values:
            self._session.emit_late("values.logged", late_values)

    def log_at(self, step: float, values: dict[str, Any]) -> None:
        """Records values for a given step; values as in log()."""
        self._log_at(step, values)

    def _record_at(self, step: Any, values: dict[str, Any]) -> None:
        """Records values for a given step; for an invalid step, as in log().

        A device number that has not arrived yet is reported when the row that is open now finishes.
        """
        last = self._session.last_step
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= last:
            self._warn_once("step", f"it is {step!r}; use a step of this process, 0 to {last}")
            self._record(values)
            return
        arrived: dict[str, float] = {}
        for name, value in values.items():
            transfer = _transfer(value)
            if transfer is None:
                self._warn_once(name, f"it is a {type(value).__name__}; use a number or a tensor")
            elif transfer.ready():
                arrived[name] = float(transfer.array().mean())
            else:
                self._session.row.later(f"late:{step}:{name}", transfer)
        if arrived:
            self._session.emit_late("values.logged", arrived, step)

    def _warn_once(self, name: str, reason: str) -> None:
        if name not in self._rejected and len(self._rejected) < MAX_LOGGED_NAMES:
            self._rejected.add(name)
            with suppress(Exception):  # a log handler of the program may raise
                log.warning("ammeter ignores %s in run.log(): %s", name, reason)

    def finish(self, row: Row) -> None:
        for key in row.transfers:
            if key.startswith("user:"):
                values = row.arrived(key)[-1]
                row.scalars[key.removeprefix("user:")] = float(values[0] if values.size == 1 else values.mean())
            elif key.startswith("late:"):
                _, step, name = key.split(":", 2)
                self._session.emit_late("values.logged", {name: float(row.arrived(key)[-1].mean())}, int(step))


def _transfer(value: Any) -> async_copy.Transfer | None:
    """Starts the transfer of a value to the host; None for non-numeric values.

    Several numbers, for example one per device, are averaged later.
    """
    if isinstance(value, torch.Tensor):
        return async_copy.of(value) if value.numel() and has_numbers(value) and not value.is_complex() else None
    if isinstance(value, np.ndarray):
        value = value.mean() if value.size and value.dtype.kind in "biuf" else None
    try:
        return async_copy.number(float(value))
    except OverflowError:
        return async_copy.number(math.inf if value > 0 else -math.inf)
    except Exception:  # noqa: BLE001 - a type of the program may raise anything
        return None
