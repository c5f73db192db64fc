"""Samples a few elements of each optimizer's gradients, and compares two samples."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks.closures import version

MAX_ELEMENTS = 16
"""Elements of each of two parameters: enough for a ratio, for a few microseconds."""

MIN_ELEMENTS = 4
"""Elements that two samples must have in common for a ratio."""

TOLERANCE = 1e-3
"""Relative tolerance of a ratio: the precision of float16."""

MIN_EQUAL_SHARE = 0.25
"""Share of elements with one ratio. The others may be clipped by value or averaged with other ranks."""

Ratios = list[float]
Returned = Mapping[int, torch.Tensor]
GradientOf = Callable[[torch.Tensor], torch.Tensor | None]


class Samples:
    """Reads the sampled elements. It keeps no tensor of the program."""

    def __init__(self) -> None:
        self._chosen: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[weakref.ref[torch.Tensor]]]
        self._chosen = weakref.WeakKeyDictionary()

    def read(self, optimizer: torch.optim.Optimizer, returned: Returned | None = None) -> Sample | None:
        """Returns the sampled elements of an optimizer's gradients; None if a sampled gradient is missing.

        Args:
            returned: gradients by id of their parameter that torch.autograd.grad() has just returned; they are read
                instead of those that the parameters hold.
        """
        grads = self._gradients(optimizer, _held if returned is None else lambda parameter: returned.get(id(parameter)))
        return unseen(lambda: _sampled(grads), grads) if grads else None

    def weights(self, optimizer: torch.optim.Optimizer) -> Sample | None:
        """Returns the elements of the weights whose gradients are sampled."""
        weights = [parameter for ref in self._chosen.get(optimizer, ()) if (parameter := ref()) is not None]
        return unseen(lambda: _sampled(weights), weights) if weights else None

    def read_one(self, optimizer: torch.optim.Optimizer, tensor: torch.Tensor) -> tuple[int, Sample] | None:
        """Returns where a gradient's elements begin in the sample, and the elements; None for one that is not sampled.

        Args:
            tensor: the gradient, or a view of it such as `.data`.
        """
        first, grads = 0, self._gradients(optimizer, _held)
        for grad in grads:
            if unseen(lambda: grad.data_ptr() == tensor.data_ptr(), (grad, tensor)):  # noqa: B023 - called at once
                return first, unseen(lambda: _sampled([grad]), (grad,))  # noqa: B023 - called at once
            first += min(grad.numel(), MAX_ELEMENTS)
        return None

    def are_hooked(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the program has hooks on a parameter whose gradient is sampled; they may change it in backward()."""
        hooked = ("_backward_hooks", "_post_accumulate_grad_hooks")
        chosen = [parameter for ref in self._chosen.get(optimizer, ()) if (parameter := ref()) is not None]
        return any(bool(getattr(parameter, name, None)) for parameter in chosen for name in hooked)

    def state(self, optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
        """Returns identity and version of the sampled gradients."""
        return tuple(number for grad in self._gradients(optimizer, _held) for number in (id(grad), version(grad)))

    def _gradients(self, optimizer: torch.optim.Optimizer, gradient_of: GradientOf) -> list[torch.Tensor]:
        chosen = [parameter for ref in self._chosen.get(optimizer, ()) if (parameter := ref()) is not None]
        if not chosen:
            chosen = _choose(optimizer, gradient_of)
            if chosen:
                self._chosen[optimizer] = [weakref.ref(parameter) for parameter in chosen]
        grads = [grad for parameter in chosen if (grad := gradient_of(parameter)) is not None]
        return grads if len(grads) == len(chosen) and all(map(_is_usual, grads)) else []


def _held(parameter: torch.Tensor) -> torch.Tensor | None:
    return parameter.grad


def _choose(optimizer: torch.optim.Optimizer, gradient_of: GradientOf) -> list[torch.Tensor]:
    """Chooses the first and the last vector; their gradients are dense and small."""
    trained = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if (grad := gradient_of(parameter)) is not None and _is_usual(grad)
    ]
    vectors = [parameter for parameter in trained if parameter.dim() == 1 and parameter.numel() >= MIN_ELEMENTS]
    candidates = vectors or [parameter for parameter in trained if parameter.numel() >= MIN_ELEMENTS]
    same_device = [parameter for parameter in candidates if parameter.device == candidates[0].device]
    return same_device[:1] if len(same_device) < 2 else [same_device[0], same_device[-1]]


def _is_usual(grad: torch.Tensor) -> bool:
    return type(grad) is torch.Tensor and grad.layout is torch.strided and has_numbers(grad) and not grad.is_complex()


class HostSample:
    """Elements that are on the host; cheaper than an array for so few."""

    on_host = True

    def __init__(self, values: list[float]) -> None:
        self.values = values


class DeviceSample:
    """Elements that arrive later from a device."""

    on_host = False

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer

    @property
    def values(self) -> list[float]:
        values: list[float] = self.transfer.array().tolist()
        return values


Sample = HostSample | DeviceSample


def _sampled(grads: list[torch.Tensor]) -> Sample:
    parts = [grad.detach().reshape(-1)[:MAX_ELEMENTS] for grad in grads]
    if parts[0].is_cpu:
        return HostSample([number for part in parts for number in part.tolist()])
    return DeviceSample(async_copy.of(torch.cat([part.float() for part in parts])))


def ratios(before: Sample, after: Sample) -> Ratios | None:
    """Returns |after / before| by element, NaN where it has no meaning; None for samples that do not fit."""
    first, last = before.values, after.values
    if len(first) != len(last):
        return None
    found = [_ratio(one, other) for one, other in zip(first, last, strict=True)]
    return found if len(_known(found)) >= MIN_ELEMENTS else None


def _ratio(before: float, after: float) -> float:
    if not before or before - before != 0 or after - after != 0:
        return math.nan
    return abs(after / before)


def product(one: Ratios, other: Ratios) -> Ratios:
    return [first * second for first, second in zip(one, other, strict=True)]


def typical(found: Sequence[float]) -> float:
    """Returns the median of the known ratios, NaN without any."""
    known = sorted(_known(found))
    return known[len(known) // 2] if known else math.nan


def is_equal(found: Ratios, number: float, share: float = MIN_EQUAL_SHARE) -> bool:
    """Whether this share of the known ratios is the number."""
    known = _known(found)
    low, high = number * (1 - TOLERANCE), number * (1 + TOLERANCE)
    equal = sum([low <= ratio <= high for ratio in known])
    return bool(known) and equal >= share * len(known)


def is_divided(before: Sample, after: Sample, scale: float) -> bool:
    """Whether the first elements with a ratio were divided by the scale; a quick answer for most steps."""
    left = MIN_ELEMENTS
    for one, other in zip(before.values, after.values, strict=False):
        ratio = _ratio(one, other)
        if ratio == ratio:
            if abs(ratio * scale - 1) > TOLERANCE:
                return False
            left -= 1
            if not left:
                return True
    return False


def magnitude(sample: Sample) -> float:
    """Returns the median of the nonzero finite elements' absolute values; 0 without any."""
    numbers = sorted([abs(number) for number in sample.values if number and number - number == 0])
    return numbers[len(numbers) // 2] if numbers else 0.0


def is_finite(sample: Sample) -> bool:
    return all(number - number == 0 for number in sample.values)


def _known(found: Sequence[float]) -> list[float]:
    return [ratio for ratio in found if ratio == ratio]
