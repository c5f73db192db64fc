"""Which share of the batch's loss a micro-batch's loss is, by what its summands were divided by."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ammeter.torch_hooks.loss_graph import MEAN, OPAQUE, SUM, Part

Parts = tuple[Part, ...]
"""The summands of one loss."""

CLOSE = 0.004
"""Share by which two factors that are the same may differ: that of bfloat16, in which a factor may be kept."""

CLOSE_COUNT = 0.25
"""The same of counted targets: a program may count those that a shift leaves out."""


def common_divisors(parts: tuple[Part, ...]) -> list[float]:
    """What all summands were divided by, and the product of these, last."""
    found = _divisors_of_all(parts)
    return [*found, math.prod(found)] if len(found) > 1 else found


def _divisors_of_all(parts: tuple[Part, ...]) -> list[float]:
    first, *others = [_divisors(part) for part in parts]
    for other in others:
        left, shared = list(other), []
        for each in first:
            at = next((at for at, same in enumerate(left) if is_close(each, same)), None)
            if at is not None:
                shared.append(left.pop(at))
        first = shared
    return first


def _divisors(part: Part) -> list[float]:
    """What it was divided by, without its sign. Nothing is known of what was multiplied by zero or by infinity."""
    found = [(abs(constant.number()), factor) for constant, factor in part.divisors]
    return [1 / number if factor else number for number, factor in found if 0 < number < math.inf]


def has_divisor(divisors: list[float], number: float) -> bool:
    return any(is_close(each, number) for each in divisors)


def is_close(one: float, other: float, share: float = CLOSE) -> bool:
    return abs(one - other) <= share * abs(other)


def is_partition(divisors: list[list[float]]) -> bool:
    """Whether the micro-batches were given shares that come to one, such as 1/N each: their sum is the batch's."""
    if not all(divisors) or len({len(each) for each in divisors}) > 1:
        return False
    return any(_is_whole([1 / each for each in column]) for column in zip(*divisors, strict=True))


def _is_whole(shares: Sequence[float], share: float = CLOSE) -> bool:
    return is_close(sum(shares), 1.0, share)


def may_be_own_mean(group: Sequence[Parts], divisors: list[list[float]]) -> bool:
    """Whether what looks like the number of micro-batches may be that of the samples that each has summed up."""
    if any(len(parts) > 1 or parts[0].kind != SUM or len(divisors[0]) > 1 for parts in group):
        return False
    return all(
        any(is_close(divisor[0], count) for count in _extents(parts[0].sizes))
        for parts, divisor in zip(group, divisors, strict=True)
    )


def is_share(group: Sequence[Parts]) -> bool | None:
    """Whether several micro-batches that are not divided by their number were divided as parts of a batch; None where
    nobody knows."""
    every = [part for parts in group for part in parts]
    if any(part.kind == OPAQUE for part in every):
        return None
    if not any(part.kind == SUM for part in every):
        first, *others = [math.prod(_divisors_of_all(parts)) for parts in group]
        number = first > 1.5 and is_close(first, round(first)) and all(is_close(each, first) for each in others)
        return None if number else False  # it may be the number of another batch's micro-batches, or a weight
    if len({len(parts) for parts in group}) > 1:
        return None
    found = {_share_of(parts) for parts in zip(*group, strict=True)}
    return found.pop() if len(found) == 1 else None


def _share_of(parts: Sequence[Part]) -> bool | None:
    """The same of one summand of the loss."""
    if all(part.kind == MEAN for part in parts):
        return False
    if not all(part.kind == SUM and _divisors(part) for part in parts):
        return None
    divisors = [common_divisors((part,)) for part in parts]
    if len({len(each) for each in divisors}) > 1:
        return None
    if not all(is_close(each[-1], divisors[0][-1]) for each in divisors):
        return False  # what covers the whole batch is the same for all of its micro-batches
    weights = [part.weight.number() for part in parts if part.weight is not None]
    counted = len(weights) == len(parts)
    counts = [[each] for each in weights] if counted else [_extents(part.sizes) for part in parts]
    found = {_covers(column, counts, CLOSE_COUNT if counted else CLOSE) for column in zip(*divisors, strict=True)}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _covers(products: Sequence[float], counts: Sequence[Sequence[float]], share: float) -> bool | None:
    """Whether the divisors count all micro-batches together, or each its own one; None for neither or both."""
    whole = own = False
    for candidate in zip(*counts, strict=False):
        shares = [count / product for count, product in zip(candidate, products, strict=True)]
        whole = whole or _is_whole(shares, share)
        own = own or all(is_close(each, 1.0, share) for each in shares)
    return whole if whole is not own else None


def _extents(sizes: Sequence[int]) -> list[float]:
    """What a sum over such a tensor may be divided by: samples, samples times tokens, and so on."""
    return [float(math.prod(sizes[: at + 1])) for at in range(len(sizes))]
