"""activation-casts: activations are cast to float32 and straight back to half precision."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event
from ammeter.verdicts.low_precision.cast_cost import MIN_TIME_SHARE, time_share, written


def _decides(data: dict[str, Any]) -> bool:
    return _share(data) >= MIN_TIME_SHARE


def _share(data: dict[str, Any]) -> float:
    return time_share(float(data.get("moved_bytes") or 0), int(data.get("flops_low") or 0))


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    dtype, caller = str(data.get("dtype") or "half precision"), str(data.get("caller") or "")
    at = f" at {caller}" if caller else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Activations are cast from {dtype} to float32 and straight back",
        cause=_cause(data, dtype, at),
        fix=_fix(dtype, caller, at),
        module=str(data.get("module") or "") or None,
        caller=caller or None,
        evidence=_evidence(data),
        **lifecycle_fields(state.opened),
    )


def _cause(data: dict[str, Any], dtype: str, at: str) -> str:
    lines = int(data.get("lines") or 1)
    where = f" and {wording.count(lines - 1, 'other line')}" if lines > 1 else ""
    return (
        f"Numbers in {dtype} are cast to float32{at}{where}, and these float32 copies are cast straight back to"
        f" {dtype}: the numbers that come back are the same, bit for bit, so the casts cost time and"
        f" change no result. In one forward pass they read and write {written(int(data['moved_bytes']))}: by the data"
        f" sheet of a V100 GPU, that takes {_times(_share(data))} the time of the matrix products in low precision."
    )


def _fix(dtype: str, caller: str, at: str) -> str:
    package = caller.rpartition("-packages/")[2].partition("/")[0] if "-packages/" in caller else ""
    how = f" The line belongs to the package {package}: override forward() of that module." if package else ""
    return (
        f"Remove the cast to float32{at}: autocast gives each operator the dtype that it needs.{how} If this part is"
        " meant to compute in float32, run it under torch.autocast(device_type, enabled=False): otherwise autocast"
        f" casts the inputs of matrix products back to {dtype}."
    )


def _times(share: float) -> str:
    return f"{wording.percent(share)} of" if share < 1 else f"{share:.3g} times"


def _evidence(data: dict[str, Any]) -> dict[str, Any]:
    names = ("moved_bytes", "casts", "flops_low", "lines", "caller_bytes", "returned_at", "modules", "dtype")
    return {name: data.get(name) for name in names}


VERDICT = Verdict(
    id="activation-casts",
    severity="ticket",
    title="Activations cast to float32 and back",
    question="Are activations cast to float32 and straight back to half precision?",
    columns=(),
    events=("kernels.round_trips",),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=SingleEventState,
    rows=False,
    judge=judge_event("kernels.round_trips", _conclude, decides=_decides),
    explains=("slower-than-fp32",),
)
