"""The losses of a step, and the share of the batch loss that each represents.

A program that accumulates gradients divides each micro-batch's loss by the number of micro-batches or by all tokens of
the batch, or does not divide it. The division appears in the autograd graph above the criterion. If it does not, the
loss is reported without a claim about the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from ammeter.recording.loss_shares import (
    common_divisors,
    has_divisor,
    is_close,
    is_partition,
    is_share,
    may_be_own_mean,
)
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.loss_graph import MEAN, PLAIN, Part
from ammeter.wire.frames import LOSS, LOSS_BACKWARD

MAX_LOSS_COLUMNS = 16
"""Maximum number of loss columns of a run, for programs that call backward() on ever new lines."""


class Caught:
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
        return self.values[0].number() if len(self.values) == 1 else sum([each.number() for each in self.values])


Key = tuple[Any, ...]


class Losses:
    """Computes the loss columns of each step of a run; steps arrive in order."""

    def __init__(self) -> None:
        self._accumulated = 0.0
        """The number of micro-batches that losses are divided by; 0 where they are not."""
        self._named = False
        self._names: dict[Key, str] = {}
        self._codes: list[CodeType | None] = []
        """Keeps code objects alive, so that no other code gets the id of one that has a name."""

    def is_plain(self, caught: Sequence[Caught]) -> bool:
        """Whether a step has a single loss, exactly the value that backward() was called on."""
        return len(caught) == 1 and caught[0].parts is PLAIN and not self._named

    def of(self, caught: Sequence[Caught], attempts: Sequence[int] = (), *, in_turn: bool = False) -> dict[str, float]:
        """Returns column -> loss for the losses of one step.

        Args:
            caught: the backward passes of the step.
            attempts: ids of the optimizers whose step was attempted, in order.
            in_turn: the program also has optimizers that were not attempted.
        """
        first, count = caught[0], len(caught)
        if not self._named and not in_turn and self._accumulated == count and _are_alike(caught):
            ((constant, factor),) = first.parts[0].divisors
            if is_close(1 / constant.number() if factor else constant.number(), count):
                return {LOSS: sum([each.number() for each in caught])}
        groups = self._merged(_grouped(caught, attempts))
        self._named = self._named or in_turn or len(groups) > 1
        found: dict[str, float] = {}
        for key, group in groups:
            number, known = self._number(group)
            column = LOSS if known else LOSS_BACKWARD
            if self._named:
                name = self._name(key, group[0].place, attempts)
                if not name:
                    continue
                column += f"@{name}"
            found[column] = number
        return found

    def _merged(self, groups: list[tuple[Key, list[Caught]]]) -> list[tuple[Key, list[Caught]]]:
        """Merges groups whose micro-batches are divided by the total number of micro-batches.

        They are one loss, even if the last micro-batch has a line of its own.
        """
        if len(groups) < 2 or len({key[4:] for key, _ in groups}) > 1:
            return groups
        every = [each for _, group in groups for each in group]
        divisors = [common_divisors(each.parts) for each in every]
        accumulated = self._accumulated
        if is_partition(divisors) or (accumulated and all(has_divisor(each, accumulated) for each in divisors)):
            return [(groups[0][0], every)]
        return groups

    def _number(self, group: list[Caught]) -> tuple[float, bool]:
        """Returns (loss, whether it is the batch loss) of a group; otherwise (mean, False)."""
        numbers = [each.number() for each in group]
        count = len(numbers)
        mean = numbers[0] if count == 1 else sum(numbers) / count
        if all(each.parts is PLAIN for each in group):
            return mean, True
        divisors = [common_divisors(each.parts) for each in group]
        if count > 1 and is_partition(divisors):
            if not may_be_own_mean([caught.parts for caught in group], divisors):
                self._accumulated = float(count) if all(has_divisor(each, count) for each in divisors) else 0.0
                return sum(numbers), True
            return mean, False
        if self._accumulated and all(has_divisor(each, self._accumulated) for each in divisors):
            return mean * self._accumulated, True
        if count == 1:
            return mean, True
        share = is_share([caught.parts for caught in group])
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
        taken = set(self._names.values())
        said = call_site.name_of(place)
        more = (f"{said}#{number}" for number in range(2, MAX_LOSS_COLUMNS + 2))
        return next(each for each in (said, *more) if each not in taken)


def _are_alike(caught: Sequence[Caught]) -> bool:
    """Whether these are means of the same lines and optimizers, divided by one equal number."""
    first = caught[0]
    if len(first.parts) != 1 or first.parts[0].kind != MEAN or len(first.parts[0].divisors) != 1:
        return False
    ((constant, factor),) = first.parts[0].divisors
    number, place, attempts, touched = constant.number(), first.place, first.attempts, first.touched
    for each in caught:
        parts = each.parts
        if each.attempts != attempts or each.touched != touched or not number:
            return False
        if len(parts) != 1 or parts[0].kind != MEAN or len(parts[0].divisors) != 1:
            return False
        ((other, same),) = parts[0].divisors
        here = each.place
        if same is not factor or other.number() != number or here[1] != place[1] or here[3] != place[3]:
            return False
        if here[0] is not place[0] or here[2] is not place[2]:
            return False
    return True


def _grouped(caught: Sequence[Caught], attempts: Sequence[int]) -> list[tuple[Key, list[Caught]]]:
    """Groups the micro-batches of one loss: same lines and same optimizers."""
    found: dict[Key, list[Caught]] = {}
    for each in caught:
        code, at, outer, outer_at = each.place
        optimizer = attempts[each.attempts] if each.attempts < len(attempts) else None
        found.setdefault((id(code), at, id(outer), outer_at, optimizer, each.touched), []).append(each)
    return list(found.items())
