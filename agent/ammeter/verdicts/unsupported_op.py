"""unsupported-op: an operator was given dtypes that it does not take, or not together, and raised."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.opened import found
from ammeter.verdicts.told import Told, told


def _conclude(state: Told) -> Finding:
    data = state.data
    caller, module = (str(data.get(name) or "") or None for name in ("caller", "module"))
    op = str(data.get("op") or "an operator")
    place = (f" in {module}" if module else "") + (f" at {caller}" if caller else "")
    passing = "backward" if data.get("backward") else "forward"
    given = _list(data)
    message = " ".join(str(data.get("message") or "").split()).rstrip(".")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{op[0].upper()}{op[1:]} does not take {' with '.join(given)}",
        cause=f"{op[0].upper()}{op[1:]}{place} raised in the {passing} pass because it was given"
        f" {' and '.join(given)}{' together' if len(given) > 1 else ', which it is not made for'}"
        f"{f': {message}' if message else ''}.",
        fix=_fix(op, given, f" at {caller}" if caller else "", backward=bool(data.get("backward"))),
        module=module,
        caller=caller,
        evidence={name: data.get(name) for name in ("op", "dtypes", "backward", "message")},
        **found(state.opened),
    )


def _list(data: dict[str, Any]) -> list[str]:
    return [str(each) for each in data.get("dtypes") or ()] or ["this dtype"]


def _fix(op: str, given: list[str], at: str, *, backward: bool) -> str:
    custom = (
        "a torch.autograd.Function of your own needs @torch.amp.custom_fwd(device_type=..., cast_inputs=torch.float32)"
        " on its forward and @torch.amp.custom_bwd(device_type=...) on its backward"
    )
    if backward:
        return f"Backward runs outside autocast: {custom}, or casts its gradient to the dtype of what it saved{at}."
    if len(given) > 1:
        return f"Cast what goes into {op}{at} to one dtype, such as x.to(weight.dtype); {custom}."
    return (
        f"Run {op}{at} in float32: with torch.autocast(device_type, enabled=False) around it and .float() on what goes"
        f" in; {custom}."
    )


VERDICT = Verdict(
    id="unsupported-op",
    severity="ticket",
    title="Unsupported operator",
    question="Did an operator raise because of the dtypes it was given?",
    columns=(),
    events=("usage.unsupported_op",),
    state=Told,
    judge=told("usage.unsupported_op", _conclude),
)
