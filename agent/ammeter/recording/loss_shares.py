"""Derives a micro-batch's share of the batch loss from the divisors of its summands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks.loss_graph import MEAN, OPAQUE, PLAIN, SUM, Part

MIN_OWN_SCALE = 64.0
"""Smallest factor of a loss that counts as a loss scale; a power of two below it may be a weight of the loss."""

Parts = tuple[Part, ...]
"""The summands of one loss."""

Divisors = tuple[tuple[Transfer, bool], ...]
"""Number of each division of a summand, and whether it is a factor."""

FACTOR_TOLERANCE = 0.004
"""Relative tolerance for equal factors: bfloat16 precision, because a factor may be stored in bfloat16."""

COUNT_TOLERANCE = 0.25
"""Relative tolerance for target counts: a program may include targets that a shift leaves out."""


def common_divisors(parts: tuple[Part, ...]) -> list[float]:
    """Returns the divisors common to all summands, followed by their product if there are several."""
    divisors = _divisors_of_all(parts)
    return [*divisors, math.prod(divisors)] if len(divisors) > 1 else divisors


def own_scale(parts: Parts) -> float:
    """Returns the loss scale by which the program itself multiplies a loss, or 0.

    It is a power of two: any other factor would change the digits of the gradients, not only their exponents.
    """
    found = [factor for factor in factors(parts) if factor >= MIN_OWN_SCALE and is_power_of_two(factor)]
    return max(found, default=0.0)


def factors(parts: Parts) -> list[float]:
    """Returns the numbers by which all summands of a loss are multiplied."""
    return [] if parts is PLAIN else [1 / divisor for divisor in _divisors_of_all(parts)]


def without_factor(parts: Parts, factor: float) -> Parts:
    """Returns the summands as they were before this factor was applied."""
    rest = tuple(part._replace(divisors=_without(part.divisors, factor)) for part in parts)
    return PLAIN if rest == PLAIN else rest


def is_power_of_two(number: float) -> bool:
    return math.frexp(number)[0] == 0.5


def _without(divisors: Divisors, factor: float) -> Divisors:
    for index, (constant, is_factor) in enumerate(divisors):
        number = abs(constant.number())
        if number and is_close(number if is_factor else 1 / number, factor):
            return divisors[:index] + divisors[index + 1 :]
    return divisors


def _divisors_of_all(parts: tuple[Part, ...]) -> list[float]:
    first, *others = [_divisors(part) for part in parts]
    for other in others:
        candidates, shared = list(other), []
        for divisor in first:
            index = next((index for index, same in enumerate(candidates) if is_close(divisor, same)), None)
            if index is not None:
                shared.append(candidates.pop(index))
        first = shared
    return first


def _divisors(part: Part) -> list[float]:
    """Returns the absolute divisors of a summand; factors of zero or infinity are ignored."""
    constants = [(abs(constant.number()), factor) for constant, factor in part.divisors]
    return [1 / number if factor else number for number, factor in constants if 0 < number < math.inf]


def has_divisor(divisors: list[float], number: float) -> bool:
    return any(is_close(divisor, number) for divisor in divisors)


def is_close(one: float, other: float, tolerance: float = FACTOR_TOLERANCE) -> bool:
    return abs(one - other) <= tolerance * abs(other)


def is_partition(divisors: list[list[float]]) -> bool:
    """Whether the micro-batch shares, such as 1/N each, add up to one.

    Then the sum of the micro-batch losses is the batch loss.
    """
    if not all(divisors) or len({len(candidates) for candidates in divisors}) > 1:
        return False
    return any(_add_up_to_one([1 / divisor for divisor in column]) for column in zip(*divisors, strict=True))


def _add_up_to_one(shares: Sequence[float], tolerance: float = FACTOR_TOLERANCE) -> bool:
    return is_close(sum(shares), 1.0, tolerance)


def may_be_own_mean(group: Sequence[Parts], divisors: list[list[float]]) -> bool:
    """Whether the common divisor may be the samples per micro-batch, not the number of micro-batches."""
    if any(len(parts) > 1 or parts[0].kind != SUM or len(divisors[0]) > 1 for parts in group):
        return False
    return all(
        any(is_close(divisor[0], count) for count in _extents(parts[0].sizes))
        for parts, divisor in zip(group, divisors, strict=True)
    )


def is_share(group: Sequence[Parts]) -> bool | None:
    """Whether micro-batch losses are shares of one batch loss; None if unknown.

    Applies to micro-batches that are not divided by their number.
    """
    summands = [part for parts in group for part in parts]
    if any(part.kind == OPAQUE for part in summands):
        return None
    if not any(part.kind == SUM for part in summands):
        first, *others = [math.prod(_divisors_of_all(parts)) for parts in group]
        is_count = first > 1.5 and is_close(first, round(first)) and all(is_close(other, first) for other in others)
        return None if is_count else False  # may be another batch's number of micro-batches, or a weight
    if len({len(parts) for parts in group}) > 1:
        return None
    shares = {_share_of(parts) for parts in zip(*group, strict=True)}
    return shares.pop() if len(shares) == 1 else None


def _share_of(parts: Sequence[Part]) -> bool | None:
    """Applies is_share() to one summand of the loss."""
    if all(part.kind == MEAN for part in parts):
        return False
    if not all(part.kind == SUM and _divisors(part) for part in parts):
        return None
    divisors = [common_divisors((part,)) for part in parts]
    if len({len(candidates) for candidates in divisors}) > 1:
        return None
    if not all(is_close(candidates[-1], divisors[0][-1]) for candidates in divisors):
        return False  # a divisor of the whole batch is equal in all its micro-batches
    weights = [part.weight.number() for part in parts if part.weight is not None]
    are_counted = len(weights) == len(parts)
    counts = [[weight] for weight in weights] if are_counted else [_extents(part.sizes) for part in parts]
    tolerance = COUNT_TOLERANCE if are_counted else FACTOR_TOLERANCE
    shares = {_covers(column, counts, tolerance) for column in zip(*divisors, strict=True)}
    shares.discard(None)
    return shares.pop() if len(shares) == 1 else None


def _covers(products: Sequence[float], counts: Sequence[Sequence[float]], tolerance: float) -> bool | None:
    """Whether the divisors count all micro-batches (True) or each its own (False); None if ambiguous."""
    is_batch = is_own = False
    for candidate in zip(*counts, strict=False):
        shares = [count / product for count, product in zip(candidate, products, strict=True)]
        is_batch = is_batch or _add_up_to_one(shares, tolerance)
        is_own = is_own or all(is_close(share, 1.0, tolerance) for share in shares)
    return is_batch if is_batch is not is_own else None


def _extents(sizes: Sequence[int]) -> list[float]:
    """Returns possible divisors of a sum over a tensor: samples, samples * tokens, ..."""
    return [float(math.prod(sizes[:count])) for count in range(1, len(sizes) + 1)]
