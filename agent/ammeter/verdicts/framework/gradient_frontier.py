"""Locates the boundary between finite and non-finite gradients of one step.

The source is the row's norms, or the event about the step. Backward runs from the last tensor to the first. A NaN or
Inf that arises in backward reaches every tensor before its origin and none after it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ammeter.verdicts.framework.finding import module_of
from ammeter.wire.columns import View, measured


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """The boundary of the non-finite gradients in the model's order of tensors.

    Attributes:
        tensor: The last non-finite tensor; None if unknown or if all tensors are non-finite.
        count: Number of non-finite tensors.
        before: Number of finite tensors before `tensor`.
        after: Number of finite tensors after `tensor`.
        inf: Whether any tensor may contain an Inf, as far as the norms show it: a norm is NaN if there is a NaN, else
            Inf. If all other gradients are zero, a clip by an infinite norm has multiplied them by zero, and Inf by
            zero is NaN.
    """

    step: int = -1
    tensor: str | None = None
    count: int = 0
    before: int = 0
    after: int = 0
    inf: bool = True

    @property
    def module(self) -> str | None:
        return module_of(self.tensor)

    @property
    def everywhere(self) -> bool:
        """Whether every gradient is non-finite.

        The NaN or Inf then came from the forward pass or the loss, and the gradients do not show its origin.
        """
        return self.count > 0 and self.before + self.after == 0

    @property
    def handed_on(self) -> bool:
        """Whether the NaN or Inf arose in backward and spread from there.

        Most gradients before a place are then non-finite, and those after it are finite.
        """
        return self.count > self.before and self.after > 0

    def words(self) -> str:
        """Returns one sentence about the place, with a leading space; empty if nothing is known."""
        if self.everywhere:
            return f" All {self.count} gradients that were read are non-finite, so they do not show the origin."
        if self.tensor is None:
            return ""
        if self.handed_on:
            return (
                f" {self.tensor} is the last tensor with a non-finite gradient; the {self.after} gradients read after"
                " it are finite."
            )
        others = self.before + self.after
        if self.count == 1:
            return f" The gradient of {self.tensor} is non-finite; {others} others are finite."
        return f" {self.count} gradients are non-finite, the last one that of {self.tensor}; {others} are finite."


def of_row(rows: View, at: int) -> Origin | None:
    """Returns the origin of the row at index `at`.

    Returns None if the row has no norms per tensor, or if all norms are finite.
    """
    if "grad.norm" not in rows.schema.stats:
        return None
    norms = rows.stat("grad.norm")[:, at]
    known = measured(norms)
    bad = np.flatnonzero(known & ~np.isfinite(norms))
    if not bad.size:
        return None
    last = int(bad[-1])
    finite = known & np.isfinite(norms)
    before, after = int(finite[:last].sum()), int(finite[last:].sum())
    infs = rows.stat("grad.infs")[:, at]
    is_clipped = bool(finite.any()) and not norms[finite].any()
    inf = is_clipped or bool(np.isinf(norms[bad]).any()) or bool((infs > 0).any())
    tensor = rows.schema.tensors[last].name if before + after else None
    return Origin(int(rows.steps[at]), tensor, len(bad), before, after, inf)


def of_event(step: int, data: dict[str, Any]) -> Origin:
    """Returns the origin that a `gradient.nonfinite` event contains."""
    finite, after, count = (int(data.get(name, 0)) for name in ("finite", "finite_after", "count"))
    tensors = data.get("tensors", ())
    inf = any(tensor.get("infs", math.inf) > 0 for tensor in tensors) or not tensors
    tensor = data.get("last") if finite else None
    return Origin(step, tensor, count, finite - after, after, inf)
