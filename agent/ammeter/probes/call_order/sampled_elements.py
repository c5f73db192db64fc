"""Samples a few elements of gradients after backward() and before their use, and compares the two samples."""

from __future__ import annotations

import math
from typing import Any

import torch

from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks.gradients import gradient

MAX_SAMPLED_GRADIENTS = 4
MAX_SAMPLED_ELEMENTS = 16
"""Gradients of one optimizer, and elements of each, that are compared."""

MAX_READ_GRADIENTS = 4
MAX_READ_ELEMENTS = 1024
"""Sampled gradients, and elements of each, that are read to check for a reset.

A reset through .data.zero_() does not change the version of a gradient. A small sample keeps this reading cheap.
"""

MAX_CHANGE = 16.0
"""Gradients whose typical element a program has changed by no more than this factor are not divided by a loss scale."""

UNIFORM_SHARE = 0.9
KEPT_SHARE = 0.25
"""Shares of the elements. A division, a clip or a normalization changes all of them by one factor."""


def sampled(parameters: list[torch.Tensor]) -> torch.Tensor | None:
    """The absolute values of a few elements of the gradients on one device."""
    chosen = parameters[:MAX_SAMPLED_GRADIENTS]
    return unseen(lambda: _sampled(chosen), _present(chosen))


def without_clips(parameters: list[torch.Tensor], clips: torch.Tensor | None) -> torch.Tensor | None:
    """The sampled elements, as they would be without torch's clips.

    Args:
        clips: the result of clip_factors() for the last clip, None without one.
    """
    found = sampled(parameters)
    if found is None or clips is None:
        return found
    return unseen(lambda: found * clips if _fit(found, clips) else found, (found, clips))


def clip_factors(before: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor | None:
    """The factors by which torch's clips have made each sampled element smaller.

    Args:
        before: the elements before the last clip, without earlier clips.
    """
    after = sampled(parameters)
    if after is None:
        return None
    return unseen(lambda: before / after if _fit(before, after) else None, (before, after))


def change(produced: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """The typical ratio of received to produced elements.

    It is NaN for a change that may replace a division by the scale: all elements have one ratio other than 1, or one
    absolute value, as after sign().
    """
    return unseen(lambda: _unless_uniform(produced, received), (produced, received))


def ratio(produced: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """The typical ratio of received to produced elements, also of a change by one factor; NaN if there is none."""
    return unseen(lambda: _ratios(produced, received).nanmedian(), (produced, received))


def transferred_ratio(produced: torch.Tensor, received: torch.Tensor) -> Transfer:
    return async_copy.of(ratio(produced, received))


def keeps_scale(found: float, scale: float | None) -> bool:
    """Whether elements are still multiplied by a scale, which may be unknown.

    Args:
        found: their typical ratio to those that backward() left. Without one, no division is shown.
    """
    return not found < (1 / MAX_CHANGE if scale is None else 1 / math.sqrt(max(scale, 1.0)))


def _present(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    return unseen(lambda: [grad for parameter in parameters if (grad := parameter.grad) is not None], ())


def _sampled(parameters: list[torch.Tensor]) -> torch.Tensor | None:
    grads = [grad for parameter in parameters if (grad := gradient(parameter)) is not None]
    near = [grad for grad in grads if grad.device == grads[0].device]
    return torch.cat([grad.flatten()[:MAX_SAMPLED_ELEMENTS].abs().float() for grad in near]) if near else None


def _fit(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.device == other.device


def _ratios(produced: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    if not _fit(produced, received):
        return torch.full((1,), math.nan)
    ratios = received / produced
    return torch.where(ratios.isfinite() & (received > 0), ratios, math.nan)


def _unless_uniform(produced: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    ratios = _ratios(produced, received)
    known = ratios.isfinite().sum()
    middle = ratios.nanmedian()
    size = torch.where(received > 0, received, math.nan).nanmedian()

    def share(numbers: torch.Tensor, number: Any, tolerance: float) -> torch.Tensor:
        is_near: torch.Tensor = (numbers - number).abs() <= tolerance * number
        return is_near.sum() / known

    is_one_factor = share(ratios, middle, 0.01) >= UNIFORM_SHARE
    is_kept = share(ratios, 1.0, 0.001) >= KEPT_SHARE
    is_flat = share(received, size, 0.01) >= UNIFORM_SHARE
    return torch.where((is_one_factor & ~is_kept) | is_flat, math.nan, middle)


def largest(parameters: list[torch.Tensor]) -> Transfer | None:
    """Transfer of the largest absolute value in sampled gradients; NaN counts as infinity."""
    grads = [grad for parameter in parameters[:MAX_READ_GRADIENTS] if (grad := gradient(parameter)) is not None]
    near = [grad for grad in grads if grad.device == grads[0].device]
    return unseen(lambda: async_copy.of(torch.stack(list(map(_largest_element, near))).max()), near) if near else None


def _largest_element(grad: torch.Tensor) -> torch.Tensor:
    return grad.flatten()[:MAX_READ_ELEMENTS].abs().max().float().nan_to_num(nan=math.inf)
