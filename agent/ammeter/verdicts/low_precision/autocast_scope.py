"""autocast-scope: backward() or the optimizer runs inside autocast."""

from __future__ import annotations

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

BACKWARD = "backward()"


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    call, caller, line = (str(data.get(name) or "") for name in ("call", "caller", "line"))
    dtype = str(data.get("dtype") or "half precision")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{call} runs inside autocast",
        cause=_cause(call, caller, line, dtype),
        fix=_fix(call, line),
        caller=caller or None,
        evidence={name: data.get(name) for name in ("call", "line", "device", "dtype")},
        **lifecycle_fields(state.opened),
    )


def _cause(call: str, caller: str, line: str, dtype: str) -> str:
    at = f" at {line}" if line else ""
    context = f"entered at {caller}" if caller and caller != line else "entered earlier"
    effect = (
        f"Autocast also casts the matrix products of backward, so that a layer that ran in float32 on purpose gets its"
        f" gradients in {dtype}. PyTorch advises against backward passes under autocast."
        if call == BACKWARD
        else f"Autocast casts the matrix products of an update, such as those of an orthogonalized or preconditioned"
        f" one, to {dtype}. It is meant for the forward pass and the loss."
    )
    return f"{call}{at} runs inside the autocast context {context}. {effect}"


def _fix(call: str, line: str) -> str:
    at = f" at {line}" if line else ""
    return f"Move {call}{at} out of the autocast block, which is meant for the forward pass and the loss."


VERDICT = Verdict(
    id="autocast-scope",
    severity="ticket",
    title="Backward or optimizer inside autocast",
    question="Does backward() or the optimizer run inside an autocast context?",
    columns=(),
    events=("usage.autocast_scope",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.autocast_scope", _conclude),
)
