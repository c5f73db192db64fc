"""Stresses each sensitive operator of a model in each dtype, and says how far its real operands are from failing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ammeter.preflight import factory
from ammeter.preflight.stress import calls, changes, samples, trials
from ammeter.preflight.stress.calls import Call, Calls, Place
from ammeter.preflight.stress.trials import Outcome
from ammeter.report.terminal.progress import Progress


@dataclass(frozen=True)
class Options:
    """The arguments of the command that change what counts as a failure."""

    dtypes: Sequence[str]
    factor: float
    half: bool


def of_factory(spelling: str, dtypes: Sequence[str], factor: float, half: bool, seed: int) -> dict[str, Any]:
    """Runs the model of a factory once and stresses its operators.

    Raises:
        BadFactory: the factory gives no model.
    """
    torch.manual_seed(seed)
    example = factory.make(spelling)
    with calls.recorded(example.module) as found:
        loss = example.loss()
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
    below, notes = _below_autocast(example, dtypes)
    options = Options(dtypes, factor, half)
    progress = Progress("stress", len(found) * len(dtypes))
    rows = [
        row(place, call, getattr(torch, dtype), _runs_in(place, call, below.get(dtype)), options, progress)
        for place, call in found.items()
        for dtype in dtypes
    ]
    progress.end()
    return {"rows": rows, "notes": notes, "operators": len(found), "device": _device(example)}


def _below_autocast(example: factory.Example, dtypes: Sequence[str]) -> tuple[dict[str, Calls], list[str]]:
    """The dtypes in which autocast runs the operators, by the dtype of autocast."""
    below: dict[str, Calls] = {}
    notes = []
    for dtype in dtypes:
        if dtype == "float32":
            continue
        try:
            with calls.recorded(example.module, operands=False) as found:
                with torch.autocast(_device(example), getattr(torch, dtype)):
                    loss = example.loss()
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            notes.append(f"the model cannot run in autocast with {dtype} ({str(error).splitlines()[0]})")
        else:
            below[dtype] = found
    return below, notes


def _device(example: factory.Example) -> str:
    tensors = [*example.module.parameters(), *(value for value in example.args if isinstance(value, torch.Tensor))]
    return tensors[0].device.type if tensors else "cpu"


def _runs_in(place: Place, call: Call, below: Calls | None) -> set[torch.dtype] | None:
    """The dtypes of an operator without and below autocast; None if that is not known."""
    return None if below is None or place not in below else call.dtypes | below[place].dtypes


def row(
    place: Place,
    call: Call,
    dtype: torch.dtype,
    runs_in: set[torch.dtype] | None,
    options: Options,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Stresses one operator in one dtype."""
    name = str(dtype).removeprefix("torch.")
    if progress is not None:
        progress.begin(f"{place.operator} at {place.line or place.module} in {name}")
    found: dict[str, Any] = {
        "operator": place.operator,
        "kernel": place.kernel,
        "module": place.module,
        "line": place.line,
        "calls": call.calls,
        "dtype": name,
        "absmax": max(call.absmax, 0.0),
        "untried": call.untried,
        "used": dtype is torch.float32 or options.half or runs_in is None or dtype in runs_in,
    }
    if call.untried:
        return found
    real = trials.run(call, dtype, call.operator.main, trials.scaled(0))
    if real is None:
        return {**found, "untried": f"no finite result in float64, or no kernel for {name}"}
    larger = _limit(call, dtype, call.operator.main, 1, real)
    smaller = _limit(call, dtype, _divisor(call), -1, real)
    found |= {"error": real.error, "bad": real.bad, "larger": larger, "smaller": smaller}
    found["headroom"] = larger["factor"] if larger else None
    found["changes"] = changes.tried(call, dtype)
    found["breaks"] = _breaks(call, real, larger, smaller, options.factor)
    found["fails"] = found["used"] and found["breaks"]
    return found


def _breaks(
    call: Call, real: Outcome, larger: Mapping[str, Any] | None, smaller: Mapping[str, Any] | None, factor: float
) -> bool:
    """Whether the real operands, or some that are as much larger or smaller as the factor, fail."""
    if call.backward:  # its numbers depend on the loss scale: only a limit that is reached without one counts
        return bool(real.bad)
    near = (larger is not None and larger["factor"] <= factor) or (smaller is not None and smaller["factor"] <= factor)
    return real.fails or near


def _divisor(call: Call) -> int:
    return call.operator.main if call.operator.divisor is None else call.operator.divisor


def _limit(call: Call, dtype: torch.dtype, at: int, sign: int, real: Outcome) -> dict[str, Any] | None:
    """The first power of two by which the operand is too large or too small; None if none is found."""
    if real.bad:
        return {"factor": 1.0, "bad": real.bad, "absmax": _absmax(call, at)}
    for exponent in range(1, trials.MAX_EXPONENT + 1):
        outcome = trials.run(call, dtype, at, trials.scaled(sign * exponent))
        if outcome is None:
            return None
        if outcome.bad:
            factor = 2.0**exponent
            return {"factor": factor, "bad": outcome.bad, "absmax": _absmax(call, at) * 2.0 ** (sign * exponent)}
    return None


def _absmax(call: Call, at: int) -> float:
    return samples.absmax(call.args[at])
