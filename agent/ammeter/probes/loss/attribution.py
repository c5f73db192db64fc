"""Which loss a backward pass was of, and what share of the batch's: from the line that called it and from the graph.

A program that accumulates gradients divides each micro-batch's loss, by their number or by all tokens of the batch, or
does not divide it. What it did stands in the graph above the criterion. Where it does not, nothing is claimed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch

from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site
from ammeter.wire.frames import LOSS, LOSS_BACKWARD

MOST_NODES = 64
"""Nodes of a graph that are looked at, above the criterion."""

MOST_NAMES = 16
"""Columns for losses of one run; a program that calls backward() on ever new lines has no more."""

CLOSE = 0.004
"""Share by which two factors that are the same may differ: that of bfloat16, in which a factor may be kept."""

CLOSE_COUNT = 0.25
"""The same of counted targets: a program may count those that a shift leaves out."""

MEAN, SUM, OPAQUE = "mean", "sum", "opaque"


class Part(NamedTuple):
    """A summand of a loss. divisors: (number, whether it is a factor) of what it was divided by, the last one first.

    kind: how its criterion made one number of many; sizes, weight: of how many, where it has summed them up.
    """

    divisors: tuple[tuple[Transfer, bool], ...]
    kind: str
    sizes: tuple[int, ...] = ()
    weight: Transfer | None = None

    def transfers(self) -> list[Transfer]:
        """What has to arrive before it says anything."""
        found = [constant for constant, _ in self.divisors]
        return found if self.weight is None else [*found, self.weight]


PLAIN = (Part((), MEAN),)
"""As most are: a mean over the batch, and nothing above it."""


class Caught:
    """What one backward pass was called on. values: its losses, which are one loss, the sum, where there are several.

    attempts: optimizers that had been asked to step before in this step. touched: those whose gradients it changed.
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
    """Of one run: tells the losses of each of its steps, in their order."""

    def __init__(self) -> None:
        self._accumulated = 0.0
        """The number of micro-batches that losses are divided by; 0 where they are not."""
        self._named = False
        self._names: dict[Key, str] = {}
        self._codes: list[CodeType | None] = []
        """Kept, so that no other code gets the identity of one that has a name."""

    def is_plain(self, caught: Sequence[Caught]) -> bool:
        """Whether a step has one loss, which is what backward() was called on."""
        return len(caught) == 1 and caught[0].parts is PLAIN and not self._named

    def of(self, caught: Sequence[Caught], attempts: Sequence[int] = (), *, in_turn: bool = False) -> dict[str, float]:
        """Column -> number, of what was caught in one step. attempts: the optimizers that were asked to step, in order.

        in_turn: there are others, which were not.
        """
        first, count = caught[0], len(caught)
        if not self._named and not in_turn and self._accumulated == count and _are_alike(caught):
            ((constant, factor),) = first.parts[0].divisors
            if _same(1 / constant.number() if factor else constant.number(), count):
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
        """Micro-batches that are divided by the number of all of them are one loss, also where the last one has a line
        of its own."""
        if len(groups) < 2 or len({key[4:] for key, _ in groups}) > 1:
            return groups
        every = [each for _, group in groups for each in group]
        divisors = [_common(each.parts) for each in every]
        if _partition(divisors) or (self._accumulated and all(_has(each, self._accumulated) for each in divisors)):
            return [(groups[0][0], every)]
        return groups

    def _number(self, group: list[Caught]) -> tuple[float, bool]:
        """(loss, whether it is that of the batch) of micro-batches of one loss; else their mean."""
        numbers = [each.number() for each in group]
        count = len(numbers)
        mean = numbers[0] if count == 1 else sum(numbers) / count
        if all(each.parts is PLAIN for each in group):
            return mean, True
        divisors = [_common(each.parts) for each in group]
        if count > 1 and _partition(divisors):
            if not _may_be_its_own_mean(group, divisors):
                self._accumulated = float(count) if all(_has(each, count) for each in divisors) else 0.0
                return sum(numbers), True
            return mean, False
        if self._accumulated and all(_has(each, self._accumulated) for each in divisors):
            return mean * self._accumulated, True
        if count == 1:
            return mean, True
        share = _share(group)
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
        if len(self._names) >= MOST_NAMES:
            return ""
        taken = set(self._names.values())
        said = call_site.name_of(place)
        more = (f"{said}#{number}" for number in range(2, MOST_NAMES + 2))
        return next(each for each in (said, *more) if each not in taken)


def look(root: Any) -> tuple[Part, ...]:
    """What stands above the criterion in the graph of a loss. To be asked before backward() frees it."""
    node = unseen(lambda: root.grad_fn, (root,)) if _modes() else root.grad_fn
    if node is None:
        return PLAIN
    kind = _KINDS.get(type(node)) or _kind_of(type(node))
    if kind is _CRITERION and node._saved_reduction == 1:
        return PLAIN
    if kind is _OWN or (kind is _AVERAGING and getattr(node, "_saved_self_sym_numel", 1) != 1):
        return PLAIN
    if kind is _FACTOR and not _modes() and (quick := _divided_mean(node)):
        return quick
    found = unseen(lambda: _seen(node), ()) if _modes() else _seen(node)
    return PLAIN if found == PLAIN else found


def _divided_mean(node: Any) -> tuple[Part, ...]:
    """Of the quotient or product that most programs make of a mean over the batch; nothing where it is another one."""
    behind = node.next_functions[0][0]
    if behind is None or (len(node.next_functions) > 1 and node.next_functions[1][0] is not None):
        return ()
    kind = _KINDS.get(type(behind)) or _kind_of(type(behind))
    if kind is not _OWN and not (kind is _CRITERION and behind._saved_reduction == 1):
        return ()
    constant, factor = _constant(node)
    return () if constant is None else (Part(((constant, factor),), MEAN),)


def _seen(node: Any) -> tuple[Part, ...]:
    return tuple(_parts(node, (), [MOST_NODES]))


def _parts(node: Any, divisors: tuple[tuple[Transfer, bool], ...], left: list[int]) -> Iterator[Part]:
    while left[0] > 0:
        left[0] -= 1
        kind = _KINDS.get(type(node)) or _kind_of(type(node))
        inputs = [each for each, _ in node.next_functions if each is not None]
        if kind is _FACTOR and len(inputs) == 1:
            constant, factor = _constant(node)
            if constant is None:
                if _is_hooked(node, "_saved_other") or _is_hooked(node, "_saved_self"):
                    yield Part(divisors, OPAQUE)
                    return
                break
            divisors = (*divisors, (constant, factor))
        elif kind is _SUMMED and len(inputs) > 1:
            for each in inputs:
                yield from _parts(each, divisors, left)
            return
        elif not (kind in (_THROUGH, _SUMMED) and len(inputs) == 1) and not _is_of_one(node, kind, inputs):
            yield _criterion(node, kind, divisors)
            return
        node = inputs[0]
    yield Part(divisors, MEAN if left[0] > 0 else OPAQUE)


def _criterion(node: Any, kind: str, divisors: tuple[tuple[Transfer, bool], ...]) -> Part:
    if kind is _CRITERION and node._saved_reduction == 2:
        if _is_hooked(node, "_saved_self") or _is_hooked(node, "_saved_total_weight"):
            return Part(divisors, OPAQUE)
        weight = getattr(node, "_saved_total_weight", None)
        if weight is None or not divisors or weight.numel() != 1:
            return Part(divisors, SUM, tuple(node._saved_self.shape))
        return Part(divisors, SUM, tuple(node._saved_self.shape), async_copy.of(weight))
    if kind is _SUMMING:
        return Part(divisors, SUM, tuple(getattr(node, "_saved_self_sym_sizes", ())))
    return Part(divisors, OPAQUE if kind is _UNKNOWN else MEAN)


def _constant(node: Any) -> tuple[Transfer | None, bool]:
    """(what a product or quotient of one loss has as its other operand, whether that is a factor)."""
    first = node.next_functions[0][0] is not None
    factor = type(node).__name__.startswith("Mul")
    name = "_saved_other" if first else "_saved_self" if factor else ""
    if not name or _is_hooked(node, name):
        return None, factor
    found = getattr(node, name)
    if isinstance(found, int | float):
        return async_copy.number(float(found)), factor
    if not isinstance(found, torch.Tensor) or found.numel() != 1 or found.is_complex():
        return None, factor
    return async_copy.of(found), factor


def _is_hooked(node: Any, name: str) -> bool:
    """Whether reading what a node has saved would call a hook of the program's: that of checkpoint() runs its whole
    block once more, that of save_on_cpu() waits for a copy. Also where it is freed: backward() will raise."""
    raw = getattr(node, f"_raw{name}", None)
    if raw is None:
        return False
    if raw.unpack_hook is not None if SAVED_TELL_HOOKS else _hooks_seen:
        return True
    try:
        getattr(node, name)
    except RuntimeError:
        return True
    return False


def hooks_seen(*_: Any) -> None:
    """From now on what a graph has saved may have hooks: for a torch that does not tell of which tensors it is so."""
    global _hooks_seen
    _hooks_seen = True


def _is_of_one(node: Any, kind: str, inputs: list[Any]) -> bool:
    """A mean or a sum of one number is that number."""
    sizes = getattr(node, "_saved_self_sym_sizes", None) if kind in (_AVERAGING, _SUMMING) else None
    return sizes is not None and len(inputs) == 1 and math.prod(sizes) == 1


def _are_alike(caught: Sequence[Caught]) -> bool:
    """Whether these are means that were divided once, of the same lines and optimizers, by the same number."""
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
    """Micro-batches of one loss: of the same lines, and for the same optimizers."""
    found: dict[Key, list[Caught]] = {}
    for each in caught:
        code, at, outer, outer_at = each.place
        optimizer = attempts[each.attempts] if each.attempts < len(attempts) else None
        found.setdefault((id(code), at, id(outer), outer_at, optimizer, each.touched), []).append(each)
    return list(found.items())


def _common(parts: tuple[Part, ...]) -> list[float]:
    """What all summands were divided by, and the product of these, last."""
    found = _divisors_of_all(parts)
    return [*found, math.prod(found)] if len(found) > 1 else found


def _divisors_of_all(parts: tuple[Part, ...]) -> list[float]:
    first, *others = [_divisors(part) for part in parts]
    for other in others:
        left, shared = list(other), []
        for each in first:
            at = next((at for at, same in enumerate(left) if _same(each, same)), None)
            if at is not None:
                shared.append(left.pop(at))
        first = shared
    return first


def _divisors(part: Part) -> list[float]:
    """What it was divided by, without its sign. Nothing is known of what was multiplied by zero or by infinity."""
    found = [(abs(constant.number()), factor) for constant, factor in part.divisors]
    return [1 / number if factor else number for number, factor in found if 0 < number < math.inf]


def _has(divisors: list[float], number: float) -> bool:
    return any(_same(each, number) for each in divisors)


def _same(one: float, other: float, share: float = CLOSE) -> bool:
    return abs(one - other) <= share * abs(other)


def _partition(divisors: list[list[float]]) -> bool:
    """Whether the micro-batches were given shares that come to one, such as 1/N each: their sum is the batch's."""
    if not all(divisors) or len({len(each) for each in divisors}) > 1:
        return False
    return any(_is_whole([1 / each for each in column]) for column in zip(*divisors, strict=True))


def _is_whole(shares: Sequence[float], share: float = CLOSE) -> bool:
    return _same(sum(shares), 1.0, share)


def _may_be_its_own_mean(group: list[Caught], divisors: list[list[float]]) -> bool:
    """Whether what looks like the number of micro-batches may be that of the samples that each has summed up."""
    if any(len(each.parts) > 1 or each.parts[0].kind != SUM or len(divisors[0]) > 1 for each in group):
        return False
    return all(
        any(_same(divisor[0], count) for count in _extents(each.parts[0].sizes))
        for each, divisor in zip(group, divisors, strict=True)
    )


def _share(group: list[Caught]) -> bool | None:
    """Whether several micro-batches that are not divided by their number were divided as parts of a batch; None where
    nobody knows."""
    every = [part for each in group for part in each.parts]
    if any(part.kind == OPAQUE for part in every):
        return None
    if not any(part.kind == SUM for part in every):
        first, *others = [math.prod(_divisors_of_all(each.parts)) for each in group]
        number = first > 1.5 and _same(first, round(first)) and all(_same(each, first) for each in others)
        return None if number else False  # it may be the number of another batch's micro-batches, or a weight
    if len({len(each.parts) for each in group}) > 1:
        return None
    found = {_share_of(parts) for parts in zip(*(each.parts for each in group), strict=True)}
    return found.pop() if len(found) == 1 else None


def _share_of(parts: Sequence[Part]) -> bool | None:
    """The same of one summand of the loss."""
    if all(part.kind == MEAN for part in parts):
        return False
    if not all(part.kind == SUM and _divisors(part) for part in parts):
        return None
    divisors = [_common((part,)) for part in parts]
    if len({len(each) for each in divisors}) > 1:
        return None
    if not all(_same(each[-1], divisors[0][-1]) for each in divisors):
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
        own = own or all(_same(each, 1.0, share) for each in shares)
    return whole if whole is not own else None


def _extents(sizes: Sequence[int]) -> list[float]:
    """What a sum over such a tensor may be divided by: samples, samples times tokens, and so on."""
    return [float(math.prod(sizes[: at + 1])) for at in range(len(sizes))]


_FACTOR, _SUMMED, _THROUGH = "factor", "summed", "through"
_CRITERION, _AVERAGING, _SUMMING, _OWN, _UNKNOWN = "criterion", "averaging", "summing", "own", "unknown"
_FACTORS = ("Mul", "Div")
_SUMS = ("Add", "Sub")
_PASSING = (
    *("Neg", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "ToCopy", "Alias"),
    *("Select", "Expand", "AsStrided", "Permute", "T", "Copy", "Slice", "Index"),
)
_KINDS: dict[type, str] = {}
_NODE = re.compile(r"(\w+?)Backward\d+$")


def _kind_of(node: type) -> str:
    """What a node of autograd's graph does with what lies behind it, by the name that torch gives it."""
    match = _NODE.match(node.__name__)
    if match is None:  # a class of the program's, which may make new ones all the time: none is kept
        return _UNKNOWN
    name = match[1]
    if name in _FACTORS:
        kind = _FACTOR
    elif name in _SUMS:
        kind = _SUMMED
    elif name in _PASSING:
        kind = _THROUGH
    elif hasattr(node, "_saved_reduction"):
        kind = _CRITERION
    elif name == "Mean":
        kind = _AVERAGING
    elif name in ("Sum", "Dot"):
        kind = _SUMMING
    else:
        kind = _OWN
    _KINDS[node] = kind
    return kind


SAVED_TELL_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch tells of a saved tensor that it has hooks; older ones do not."""

_hooks_seen = False

_modes: Callable[[], int] = torch._C._len_torch_function_stack
