"""Where the non-finite gradients of one step stop: read from the row's norms, or from the event about it.

Backward goes from the last tensor to the first. What is born in it reaches every tensor before, none behind.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ammeter.verdicts.framework.finding import module_of
from ammeter.wire.columns import View, measured


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """tensor: the last non-finite one in the model's order, None when unknown or when all are non-finite.

    count: non-finite tensors. before, after: finite tensors before and behind `tensor`. inf: whether any tensor
    held an Inf as far as one can see; a norm is NaN when there is a NaN, else Inf.
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
        """Every gradient is non-finite: it came from the forward pass or the loss, gradients cannot say where."""
        return self.count > 0 and self.before + self.after == 0

    @property
    def handed_on(self) -> bool:
        """Born in backward and passed on: non-finite nearly everywhere before a place, finite behind it."""
        return self.count > self.before and self.after > 0

    def words(self) -> str:
        """One sentence on where, with a space before it; empty when nothing is known."""
        if self.everywhere:
            return f" All {self.count} gradients that were read are non-finite: they do not say where it began."
        if self.tensor is None:
            return ""
        if self.handed_on:
            return (
                f" {self.tensor} is the last tensor with a non-finite gradient, and {self.after} behind it were read"
                " and are finite."
            )
        others = self.before + self.after
        if self.count == 1:
            return f" The gradient of {self.tensor} is non-finite; {others} others are finite."
        return f" {self.count} gradients are non-finite, {self.tensor} last of them; {others} are finite."


def of_row(rows: View, at: int) -> Origin | None:
    """The origin of the row at index `at`, None where the row has no norms per tensor or all are finite."""
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
    inf = bool(np.isinf(norms[bad]).any()) or bool((infs > 0).any())
    tensor = rows.schema.tensors[last].name if before + after else None
    return Origin(int(rows.steps[at]), tensor, len(bad), before, after, inf)


def of_event(step: int, data: dict[str, Any]) -> Origin:
    """The origin as a `gradient.nonfinite` event tells it."""
    finite, after, count = (int(data.get(name, 0)) for name in ("finite", "finite_after", "count"))
    tensors = data.get("tensors", ())
    inf = any(each.get("infs", math.inf) > 0 for each in tensors) or not tensors
    tensor = data.get("last") if finite else None
    return Origin(step, tensor, count, finite - after, after, inf)
