"""The updates of gradient scalers within one step, and which optimizers they kept from stepping."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ammeter.tensors.async_copy import Transfer

if TYPE_CHECKING:
    from ammeter.recording.row import Row


@dataclass(slots=True)
class Update:
    """One update() of one scaler in a step. found: id of an optimizer -> what was found on each device, > 0 for Inf.

    number: the scaler's, in the order in which they were seen first. after: the scale that update() left.
    """

    number: int
    scale: Transfer
    growth_tracker: Transfer
    found: dict[int, list[Transfer]] = field(default_factory=dict)
    after: Transfer | None = None


def skipped_in(row: Row) -> Set[int]:
    """ids of the optimizers that a finished row's step was kept from: on the host, or late by their own kernel.

    A fused optimizer steps in any case and applies nothing when its kernel reads found_inf.
    """
    updates: list[Update] = row.raw.get("updates", [])
    late = {key for each in updates for key, found in each.found.items() if key in row.fused and is_positive(found)}
    return row.skipped | late


def is_positive(found: list[Transfer]) -> bool:
    return any(each.number() > 0 for each in found)
