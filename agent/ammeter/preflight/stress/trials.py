"""Runs one operator in a dtype and in float64, from operands that are changed step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ammeter.preflight.stress.calls import Call
from ammeter.preflight.stress.operators import is_float

MAX_EXPONENT = 40
"""Powers of two by which operands are made larger or smaller; float16 covers 40 with all its numbers."""

LOST = 0.5
"""Relative error from which not even the first bit of a result is right."""

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What an operator does in a dtype.

    Attributes:
        bad: `NaN` or `Inf` where the result in float64 is finite; `operand` if the operand itself does not fit.
        error: largest error relative to the largest number of its row, or of the sum of the absolute terms.
    """

    bad: str
    error: float

    @property
    def fails(self) -> bool:
        return bool(self.bad) or self.error >= LOST


def run(call: Call, dtype: torch.dtype, at: int, change: Change) -> Outcome | None:
    """Runs the operator with one operand changed.

    Returns:
        None if there is no kernel for the dtype, or if the operator has no finite result in float64.
    """
    exact_args = [_double(value) for value in call.args]
    exact_args[at] = change(exact_args[at])
    kwargs = {name: _double(value) for name, value in call.kwargs.items()}
    low_args, low_kwargs = _low(exact_args, dtype), dict(zip(kwargs, _low(list(kwargs.values()), dtype), strict=True))
    if (low_args[at].isinf() & exact_args[at].isfinite()).any():
        return Outcome("operand", 0.0)
    low = output(call, low_args, low_kwargs)
    size = _size(call, exact_args, kwargs)
    exact = output(call, exact_args, kwargs)
    if low is None or exact is None or low.shape != exact.shape:
        return None
    return _compared(call, low.double(), exact, size)


def _compared(call: Call, low: torch.Tensor, exact: torch.Tensor, size: torch.Tensor | None) -> Outcome | None:
    defined = exact.isfinite()
    if not defined.any():
        return None
    if (low.isnan() & defined).any():
        return Outcome("NaN", 1.0)
    if (low.isinf() & defined).any():
        return Outcome("Inf", 1.0)
    error = torch.where(defined, (low - exact).abs(), 0.0)
    whole = torch.where(defined, exact.abs(), 0.0) if size is None else size.abs().nan_to_num(posinf=0.0)
    by_row = size is None and call.operator.shape == "rows" and exact.dim() > 0
    largest = whole.amax(-1, keepdim=True) if by_row else whole.max()
    relative = torch.where(largest > 0, error / largest, 0.0)
    return Outcome("", float(relative.max()))


def _size(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The result from absolute values: the size of a sum whose terms may cancel out."""
    if not call.operator.reduces:
        return None
    return output(call, [value.abs() if is_float(value) else value for value in args], kwargs)


def output(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Runs the operator and returns its first output, None if it cannot run.

    The operands are copied, because some kernels change theirs.
    """
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in args]
    try:
        with torch.no_grad():
            found = call.function(*copies, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None
    found = found[0] if isinstance(found, tuple | list) else found
    return found if is_float(found) else None


def _double(value: Any) -> Any:
    return value.double() if is_float(value) else value


def _low(values: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    return [
        value.to(dtype) if is_float(value) else dtype if value is torch.float64 or value is torch.float32 else value
        for value in values
    ]


def scaled(exponent: int) -> Change:
    return lambda tensor: tensor * 2.0**exponent
