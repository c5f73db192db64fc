"""Scaler updates within one step, and the optimizer steps they skipped."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

import msgspec

from ammeter.tensors.async_copy import Transfer

if TYPE_CHECKING:
    from ammeter.recording.row import Row


class Update(msgspec.Struct):
    """One update() call of one scaler in a step.

    Attributes:
        number: index of the scaler, in the order of first use.
        scale, growth_tracker: values before the update.
        found_infs: optimizer id -> found_inf per device; a value > 0 means Inf or NaN.
        after: the scale after update().
    """

    number: int
    scale: Transfer
    growth_tracker: Transfer
    found_infs: dict[int, list[Transfer]] = msgspec.field(default_factory=dict)
    after: Transfer | None = None


def skipped_in(row: Row) -> Set[int]:
    """Returns the ids of the optimizers whose step was skipped in this finished row.

    A skip happens on the host, or for fused optimizers in their kernel: step() always runs there, but the kernel
    applies nothing when it reads found_inf > 0.
    """
    updates: list[Update] = row.raw.get("updates", [])
    in_kernel = {
        key
        for update in updates
        for key, found_infs in update.found_infs.items()
        if key in row.fused and is_positive(found_infs)
    }
    return row.skipped | in_kernel


def is_positive(transfers: list[Transfer]) -> bool:
    return any(transfer.number() > 0 for transfer in transfers)
