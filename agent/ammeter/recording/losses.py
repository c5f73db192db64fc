"""The losses of a step, and the share of the batch loss that each represents.

A program that accumulates gradients divides each micro-batch's loss by the number of micro-batches or by all tokens of
the batch, or does not divide it. The division appears in the autograd graph above the criterion. If it does not, the
loss is reported without a claim about the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from ammeter.recording.loss_shares import (
    common_divisors,
    has_divisor,
    is_close,
    is_partition,
    is_share,
    may_be_own_mean,
    without_factor,
)
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.loss_graph import MEAN, OPAQUE, PLAIN, Part
from ammeter.wire.frames import LOSS, LOSS_BACKWARD

if TYPE_CHECKING:
    from ammeter.recording.own_scale import OwnScale
    from ammeter.recording.stream_columns import StreamColumns

MAX_LOSS_COLUMNS = 16
"""Maximum number of named losses of a run, for programs that call backward() on ever new lines."""

MAX_LOSS_CHANGE = 8.0
"""Factor by which a loss differs from the one before it. The smallest scale is the square of it."""


class BackwardLoss:
    """The losses that one backward pass was called on.

    Attributes:
        values: the losses; several values count as one loss, their sum.
        attempts: number of optimizers whose step was attempted earlier in this step.
        touched: ids of the optimizers whose gradients the pass changed.
    """

    __slots__ = ("attempts", "parts", "place", "touched", "values")

    def __init__(self, values: Sequence[Transfer], parts: tuple[Part, ...], place: call_site.Place, attempts: int = 0):
        self.values = values
        self.parts = parts
        self.place = place
        self.attempts = attempts
        self.touched: frozenset[int] | None = None

    def number(self) -> float:
        return self.values[0].number() if len(self.values) == 1 else sum([value.number() for value in self.values])

    def divided_by(self, scale: float) -> BackwardLoss:
        """Returns the loss before the program multiplied it by a scale."""
        values = [async_copy.number(value.number() / scale) for value in self.values]
        loss = BackwardLoss(values, without_factor(self.parts, scale), self.place, self.attempts)
        loss.touched = self.touched
        return loss


Key = tuple[Any, ...]
Group = tuple[Key, list[BackwardLoss]]


class Losses:
    """Computes the loss columns of each step of a run; steps arrive in order.

    Attributes:
        are_of_backward: whether the program has called backward() or scale(). Until then, the losses that it passes to
            torch.autograd.grad() are those of its steps.
        passes: the backward passes so far whose loss was recorded.
    """

    def __init__(self, columns: StreamColumns, own_scale: OwnScale) -> None:
        self._columns = columns
        self._own_scale = own_scale
        self.are_of_backward = False
        self.passes = 0
        self._last_number = math.inf
        """The last loss that was divided by the program's own scale."""
        self._accumulated = 0.0
        """The number of micro-batches that losses are divided by; 0 where they are not."""
        self._named = False
        self._names: dict[Key, str] = {}
        self._codes: list[CodeType | None] = []
        """Keeps code objects alive, so that no other code gets the id of one that has a name."""

    def unscaled(self, losses: Sequence[BackwardLoss]) -> Sequence[BackwardLoss]:
        """Returns losses whose numbers have arrived, without the program's own scale.

        Returns:
            [] if one of them may still contain it.
        """
        if not self._own_scale.value:
            return losses
        found = [self._unscaled(loss) for loss in losses]
        known = [loss for loss in found if loss is not None]
        return known if len(known) == len(found) else []

    def _unscaled(self, loss: BackwardLoss) -> BackwardLoss | None:
        scale = self._own_scale.factor(loss.parts)
        if not scale:
            return None if self._may_hide_scale(loss) else loss
        loss = loss.divided_by(scale)
        self._last_number = loss.number()
        return loss

    def _may_hide_scale(self, loss: BackwardLoss) -> bool:
        """Whether the graph may hide the scale, and the loss is larger than the last one by as much as the scale."""
        number = abs(loss.number())
        if self._own_scale.is_hidden or not math.isfinite(number) or all(part.kind != OPAQUE for part in loss.parts):
            return False
        return number * MAX_LOSS_CHANGE >= abs(self._last_number) * self._own_scale.value

    def columns(
        self, losses: Sequence[BackwardLoss], attempts: Sequence[int] = (), *, in_turn: bool = False
    ) -> dict[str, float]:
        """Returns column -> loss of a finished step; adds columns for new losses.

        Args:
            losses: the backward passes of the step.
            attempts: ids of the optimizers whose step was attempted, in order.
            in_turn: the program also has optimizers that were not attempted.
        """
        first, count = losses[0], len(losses)
        if count == 1 and first.parts is PLAIN and not self._named and not in_turn:
            return {LOSS: first.number()}
        numbers = self._numbers(losses, attempts, in_turn=in_turn)
        self._columns.add(numbers)  # at most MAX_LOSS_COLUMNS, however many the program logs beside them
        return numbers

    def known(self, losses: Sequence[BackwardLoss]) -> float | None:
        """Returns the loss of a step that has just closed, if it is on the host and other steps do not affect it."""
        if self._named or not losses:
            return None
        for loss in losses:
            for value in loss.values:
                if not value.on_host:
                    return None
        losses = self.unscaled(losses)
        if not losses:
            return None
        if len(losses) == 1 and (loss.parts is PLAIN or not self._accumulated):
            return loss.number()
        return self._sum_of_shares(losses)

    def _sum_of_shares(self, losses: Sequence[BackwardLoss]) -> float | None:
        """Returns the loss of micro-batches that are divided by their number as before; None for others."""
        count = len(losses)
        if self._named or self._accumulated != count or not _are_alike(losses):
            return None
        ((constant, is_factor),) = losses[0].parts[0].divisors
        divisor = 1 / constant.number() if is_factor else constant.number()
        return sum([loss.number() for loss in losses]) if is_close(divisor, count) else None

    def _numbers(self, losses: Sequence[BackwardLoss], attempts: Sequence[int], *, in_turn: bool) -> dict[str, float]:
        accumulated = None if in_turn else self._sum_of_shares(losses)
        if accumulated is not None:
            return {LOSS: accumulated}
        groups = self._merged(_grouped(losses, attempts))
        self._named = self._named or in_turn or len(groups) > 1
        numbers: dict[str, float] = {}
        for key, group in groups:
            number, is_batch_loss = self._number(group)
            column = LOSS if is_batch_loss else LOSS_BACKWARD
            if self._named:
                name = self._name(key, group[0].place, attempts)
                if not name:
                    continue
                column += f"@{name}"
            numbers[column] = number
        return numbers

    def _merged(self, groups: list[Group]) -> list[Group]:
        """Merges groups whose micro-batches are divided by the total number of micro-batches.

        They are one loss, even if the last micro-batch has a line of its own.
        """
        if len(groups) < 2 or len({key[4:] for key, _ in groups}) > 1:
            return groups
        losses = [loss for _, group in groups for loss in group]
        divisors = [common_divisors(loss.parts) for loss in losses]
        if is_partition(divisors) or (self._accumulated and _all_have_divisor(divisors, self._accumulated)):
            return [(groups[0][0], losses)]
        return groups

    def _number(self, group: list[BackwardLoss]) -> tuple[float, bool]:
        """Returns (loss, whether it is the batch loss) of a group; otherwise (mean, False)."""
        numbers = [loss.number() for loss in group]
        count = len(numbers)
        mean = numbers[0] if count == 1 else sum(numbers) / count
        if all(loss.parts is PLAIN for loss in group):
            return mean, True
        divisors = [common_divisors(loss.parts) for loss in group]
        if count > 1 and is_partition(divisors):
            if not may_be_own_mean([loss.parts for loss in group], divisors):
                self._accumulated = float(count) if _all_have_divisor(divisors, count) else 0.0
                return sum(numbers), True
            return mean, False
        if self._accumulated and _all_have_divisor(divisors, self._accumulated):
            return mean * self._accumulated, True
        if count == 1:
            return mean, True
        share = is_share([loss.parts for loss in group])
        if share is None:
            return mean, False
        return (sum(numbers) if share else mean), True

    def _name(self, key: Key, place: call_site.Place, attempts: Sequence[int]) -> str:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._new_name(key, place, attempts)
            self._codes += (place[0], place[2])
        return name

    def _new_name(self, key: Key, place: call_site.Place, attempts: Sequence[int]) -> str:
        if len(self._names) >= MAX_LOSS_COLUMNS:
            return ""
        used = set(self._names.values())
        line = call_site.name_of(place)
        numbered = (f"{line}#{number}" for number in range(2, MAX_LOSS_COLUMNS + 2))
        return next(name for name in (line, *numbered) if name not in used)


def _all_have_divisor(divisors: list[list[float]], number: float) -> bool:
    return all(has_divisor(candidates, number) for candidates in divisors)


def _are_alike(losses: Sequence[BackwardLoss]) -> bool:
    """Whether these are means of the same lines and optimizers, divided by one equal number."""
    first = losses[0]
    if len(first.parts) != 1 or first.parts[0].kind != MEAN or len(first.parts[0].divisors) != 1:
        return False
    ((constant, is_factor),) = first.parts[0].divisors
    number, place, attempts, touched = constant.number(), first.place, first.attempts, first.touched
    for loss in losses:
        parts = loss.parts
        if loss.attempts != attempts or loss.touched != touched or not number:
            return False
        if len(parts) != 1 or parts[0].kind != MEAN or len(parts[0].divisors) != 1:
            return False
        ((other, is_other_factor),) = parts[0].divisors
        its = loss.place
        if is_other_factor is not is_factor or other.number() != number:
            return False
        if its[0] is not place[0] or its[1] != place[1] or its[2] is not place[2] or its[3] != place[3]:
            return False
    return True


def _grouped(losses: Sequence[BackwardLoss], attempts: Sequence[int]) -> list[Group]:
    """Groups the micro-batches of one loss: same lines and same optimizers."""
    groups: dict[Key, list[BackwardLoss]] = {}
    for loss in losses:
        code, instruction, outer, outer_instruction = loss.place
        optimizer = attempts[loss.attempts] if loss.attempts < len(attempts) else None
        key = (id(code), instruction, id(outer), outer_instruction, optimizer, loss.touched)
        groups.setdefault(key, []).append(loss)
    return list(groups.items())
