"""Counts the micro-batches without any target, also where the program keeps their NaN out of its loss.

A mean over no targets is NaN; a program that divides by at least one, or replaces NaN, has a loss of zero without any
gradient. On the host only losses that are zero or not finite can be such, and the targets of no other are read. From a
device the loss arrives too late; there the targets are read in followed steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.targets.counts import any_target, lacks_targets, target_counts
from ammeter.probes.targets.given_up import GivenUpPasses
from ammeter.recording.loss_shares import common_divisors
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.loss_graph import SUM

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.losses import BackwardLoss
    from ammeter.recording.row import Row

EVENT = "targets.missing"

MIN_SHARED_DIVISOR = 1.5
"""A sum over no targets, divided by more than one, belongs to a batch with targets elsewhere."""


class MissingTargets:
    """The micro-batches of one run without targets.

    An event has their number at the 1st, 2nd, 4th, 8th ... of them, and whenever twice as many micro-batches were
    examined as at the last event.
    """

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._count = self._read = self._due = 0
        self._first: dict[str, Any] = {}
        self._given_up = GivenUpPasses(session, self._found_given_up)
        self._is_given_up = False
        self.backward = self._given_up.backward

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        return self._given_up.attach(guard)

    def examine(self, roots: Sequence[torch.Tensor], loss: BackwardLoss) -> None:
        """Counts a micro-batch without targets. Its loss, which is on the host, is zero or not finite."""
        counts = self._counts(roots, loss)
        if all(count.is_cpu for count in counts) and unseen(lambda: lacks_targets(counts), counts):
            self._add(self._session.row, loss.number(), call_site.line_at(loss.place))

    def examine_later(self, roots: Sequence[torch.Tensor], loss: BackwardLoss) -> None:
        """Copies the counts of a micro-batch whose loss is on a device."""
        counts = self._counts(roots, loss)
        if counts:
            row, found = self._session.row, async_copy.of(unseen(lambda: any_target(counts), counts))
            row.later("targets", found)
            row.raw.setdefault("targets_of", []).append(loss)

    def finish(self, row: Row) -> None:
        for transfer, loss in zip(row.transfers.get("targets", ()), row.raw.get("targets_of", ()), strict=True):
            self._read += 1
            if not transfer.number():
                self._add(row, loss.number(), call_site.line_at(loss.place))
        if self._count and self._examined() >= self._due:
            self._emit(row)

    def _found_given_up(self, loss: float) -> None:
        """Counts a loss that the program does not call backward() on."""
        if not self._is_given_up:
            self._is_given_up, self._count, self._first = True, 0, {}
        self._add(self._session.row, loss, "")

    def _counts(self, roots: Sequence[torch.Tensor], loss: BackwardLoss) -> list[torch.Tensor]:
        """Returns the numbers that are all zero if none of the roots has a target; [] if that cannot be known."""
        if _is_part_of_ranks() and _is_shared(loss):
            return []
        counts = [unseen(lambda: target_counts(root), ()) for root in roots]  # noqa: B023 - called at once
        return [number for found in counts for number in found] if all(counts) else []

    def _examined(self) -> int:
        """Returns the number of micro-batches among which those without targets would have been found."""
        if self._is_given_up:
            return self._given_up.passes
        return self._read or self._session.losses.passes

    def _add(self, row: Row, loss: float, caller: str) -> None:
        self._count += 1
        if not self._first:
            self._first = {"caller": caller, "first_step": row.step, "nan": not math.isfinite(loss)}
        if self._count & (self._count - 1) == 0:
            self._emit(row)

    def _emit(self, row: Row) -> None:
        examined = self._examined()
        self._due = 2 * examined
        data = {"count": self._count, "of": examined, **self._first}
        if self._is_given_up:
            data |= {"given_up": self._given_up.given_up, "searched": self._given_up.searched}
        row.events.append((EVENT, data))


def _is_shared(loss: BackwardLoss) -> bool:
    """Whether the loss is a sum that is divided by the targets of several micro-batches or ranks."""
    is_sum = any(part.kind == SUM for part in loss.parts)
    return is_sum and max(common_divisors(loss.parts), default=1.0) > MIN_SHARED_DIVISOR


def _is_part_of_ranks() -> bool:
    """Whether the targets of a batch may be on other ranks."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
