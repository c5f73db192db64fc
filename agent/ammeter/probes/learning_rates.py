"""Records the learning rates and the momentum with which the optimizers step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ammeter.tensors import async_copy
from ammeter.torch_hooks import optimizer_steps

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


MAX_GROUPS = 8
RANGE_STEPS = 16
"""With more groups, the range over them is read every RANGE_STEPS: a group takes a quarter of a microsecond."""


class _Read(NamedTuple):
    """The numbers of one optimizer that are on the host: those of its first group, and the range over all."""

    rate: float | None
    momentum: float | None
    lowest: float
    highest: float


class LearningRates:
    """Reads param_groups before step(). A rate in a tensor on a device is not read, as that would wait for it."""

    name = "learning_rates"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        return self._session.fast_path.pauses([optimizer_steps.before(guard(self._stepping))])

    def finish(self, row: Row) -> None:
        """Fills the columns; in a skipped step, which calls no optimizer, with the present numbers."""
        found: list[_Read] = row.raw.get("learning_rates", [])
        if not found and row.skipped:
            found = [
                _read(optimizer, row.step)
                for optimizer in self._session.watched.optimizers
                if id(optimizer) in row.skipped
            ]
        if not found:
            return
        first = found[0]
        rates = {"optimizer_lr": first.rate, "optimizer_momentum": first.momentum}
        row.scalars |= {name: number for name, number in rates.items() if number is not None}
        lowest, highest = min(read.lowest for read in found), max(read.highest for read in found)
        if lowest < highest:
            row.scalars |= {"optimizer_lr_lowest": lowest, "optimizer_lr_highest": highest}

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in self._session.watched.optimizers and not optimizer_steps.is_replayed():
            row = self._session.row
            row.raw.setdefault("learning_rates", []).append(_read(optimizer, row.step))


_UNKNOWN = _Read(None, None, float("inf"), float("-inf"))


def _read(optimizer: torch.optim.Optimizer, step: int) -> _Read:
    groups = optimizer.param_groups
    if not groups:
        return _UNKNOWN
    first = groups[0]
    betas, rate = first.get("betas"), _number(first.get("lr"))
    momentum = _number(first.get("momentum") if betas is None else betas[0])
    if len(groups) > MAX_GROUPS and step % RANGE_STEPS:
        groups = []
    rates = [number for group in groups[1:] if (number := _number(group.get("lr"))) is not None]
    if rate is not None:
        rates.append(rate)
    return _Read(rate, momentum, min(rates), max(rates)) if rates else _UNKNOWN._replace(momentum=momentum)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor):
        return async_copy.known(value)
    return float(value) if isinstance(value, float | int) else None
