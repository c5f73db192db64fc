"""unsupported-op: an operator raised because it does not support its input dtypes, or their combination."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

METHODS = {"forward", "backward"}
"""Names of the function around the line. The event contains such a name as the operator if the line calls nothing, as
in `x @ weight`."""


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller, module, op = (str(data.get(name) or "") or None for name in ("caller", "module", "op"))
    place = (f" in {module}" if module else "") + (f" at {caller}" if caller else "")
    called = f", where {op} is called," if op and op not in METHODS else ""
    passing = "backward" if data.get("backward") else "forward"
    given = _list(data)
    reason = " together" if len(given) > 1 else ", for which it has no kernel"
    message = " ".join(str(data.get("message") or "").split()).rstrip(".")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"An operator does not support {' with '.join(given)}",
        cause=f"An operator{place}{called} raised in the {passing} pass because its inputs were {' and '.join(given)}"
        f"{reason}{f': {message}' if message else ''}.",
        fix=_fix(given, f" at {caller}" if caller else "", backward=bool(data.get("backward"))),
        module=module,
        caller=caller,
        evidence={name: data.get(name) for name in ("op", "dtypes", "backward", "message")},
        **lifecycle_fields(state.opened),
    )


def _list(data: dict[str, Any]) -> list[str]:
    return [str(dtype) for dtype in data.get("dtypes") or ()] or ["this dtype"]


def _fix(given: list[str], at: str, *, backward: bool) -> str:
    custom = (
        "a custom torch.autograd.Function needs @torch.amp.custom_fwd(device_type=..., cast_inputs=torch.float32)"
        " on its forward and @torch.amp.custom_bwd(device_type=...) on its backward"
    )
    if backward:
        return (
            f"Backward runs outside autocast, so {custom}, or must cast its gradient to the dtype of its saved"
            f" tensors{at}."
        )
    if len(given) > 1:
        return f"Cast the inputs of the operator{at} to one dtype, such as x.to(weight.dtype); {custom}."
    return (
        f"Run the operator{at} in float32: inside with torch.autocast(device_type, enabled=False), with .float() on its"
        f" inputs; {custom}."
    )


VERDICT = Verdict(
    id="unsupported-op",
    severity="ticket",
    title="Unsupported operator",
    question="Did an operator raise because of the dtypes of its inputs?",
    columns=(),
    events=("usage.unsupported_op",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.unsupported_op", _conclude),
)
