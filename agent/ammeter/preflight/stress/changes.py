"""Degenerate operands: large offsets, almost constant rows, masked rows and longer sums."""

from __future__ import annotations

import math
from typing import Any

import torch

from ammeter.preflight.stress import trials
from ammeter.preflight.stress.calls import Call
from ammeter.preflight.stress.trials import Change, Outcome
from ammeter.probes.origin.graph.trial import MAX_ELEMENTS

OFFSET = 8.0
"""An offset of the rows, in units of their largest number."""

CONSTANT = 2.0**-12
"""How much rows differ that are almost constant: less than the spacing of float16 and bfloat16."""

REPEATS = 64
"""Times that a sum is longer."""


def tried(call: Call, dtype: torch.dtype) -> dict[str, Any]:
    """What each change that concerns the operator does in a dtype: `bad` and `error` of its outcome."""
    at, operand = call.operator.main, call.args[call.operator.main]
    found: dict[str, Outcome | None] = {}
    if not operand.dim():
        return {}
    if call.operator.shifted:
        found["offset"] = trials.run(call, dtype, at, _shifted)
        found["constant rows"] = trials.run(call, dtype, at, _constant)
    if call.operator.masked:
        found["masked row"] = _masked_row(call, dtype)
    if call.operator.name in ("sum", "mean", "vector_norm") and operand.numel() * REPEATS <= MAX_ELEMENTS:
        found["longer"] = trials.run(call, dtype, at, _longer(call))
    return {name: as_json(outcome) for name, outcome in found.items() if outcome is not None}


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Returns an outcome as a dict whose numbers are finite."""
    return {"bad": outcome.bad, "error": outcome.error if math.isfinite(outcome.error) else None}


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + OFFSET * _largest(tensor)


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    return _largest(tensor) + (tensor - tensor.mean(-1, keepdim=True)).nan_to_num(neginf=0.0) * CONSTANT


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.isfinite(), tensor.abs(), 0).max()


def _longer(call: Call) -> Change:
    """Repeats the operand along the dimension that is summed."""
    operand = call.args[call.operator.main]
    dims = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], list) and call.args[1] else [-1]
    repeats = [1] * operand.dim()
    repeats[dims[0]] = REPEATS
    return lambda tensor: tensor.repeat(repeats)


def _masked_row(call: Call, dtype: torch.dtype) -> Outcome | None:
    """A row of -Inf; float64 gives NaN as well, so that it is not compared."""
    args = [*call.args]
    changed = args[call.operator.main].clone()
    changed.reshape(-1, changed.shape[-1])[0] = -torch.inf
    args[call.operator.main] = changed.to(dtype)
    output = trials.output(call, args, call.kwargs)
    return None if output is None else Outcome("NaN" if output.isnan().any() else "", 0.0)
