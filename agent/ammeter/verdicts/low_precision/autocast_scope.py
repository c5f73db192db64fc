"""autocast-scope: backward() or the optimizer runs inside autocast.

If forward passes then use copies of weights from before a step, the finding is about them.
"""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

BACKWARD = "backward()"


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    call, caller, line = (str(data.get(name) or "") for name in ("call", "caller", "line"))
    dtype = str(data.get("dtype") or "half precision")
    stale = bool(data.get("stale_updates"))
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Forward passes use old copies of the weights" if stale else f"{call} runs inside autocast",
        cause=_stale(data, call, caller, line, dtype) if stale else _cause(call, caller, line, dtype),
        fix=_fix_stale(call, line) if stale else _fix(call, line),
        caller=caller or None,
        evidence={name: data.get(name) for name in _EVIDENCE} | {name: data[name] for name in _STALE if name in data},
        **lifecycle_fields(state.opened),
    )


_EVIDENCE = ("call", "line", "device", "dtype")

_STALE = ("stale_step", "stale_updates", "stale_numbers", "compared_numbers", "tensors")


def _stale(data: dict[str, Any], call: str, caller: str, line: str, dtype: str) -> str:
    updates = int(data["stale_updates"])
    tensors = ", ".join(map(str, data.get("tensors") or ()))
    number, compared = int(data.get("stale_numbers") or 0), int(data.get("compared_numbers") or 0)
    named = f" ({tensors})" if tensors else ""
    return (
        f"{_runs(call, caller, line)}, and autocast keeps the {dtype} copies that it makes of the weights until its"
        " outermost context ends. Forward passes after such a call used copies from before it, seen since step"
        f" {data.get('first_step')}. At step {data.get('stale_step')} the oldest of those compared{named} was"
        f" {wording.count(updates, 'update')} behind, and {number} of {wording.count(compared, 'number')} in them were"
        f" not those of the weights in {dtype}."
    )


def _runs(call: str, caller: str, line: str) -> str:
    context = f"entered at {caller}" if caller and caller != line else "entered earlier"
    return f"{call}{f' at {line}' if line else ''} runs inside the autocast context {context}"


def _cause(call: str, caller: str, line: str, dtype: str) -> str:
    effect = (
        f"Autocast also casts the matrix products of backward, so that a layer that ran in float32 on purpose gets its"
        f" gradients in {dtype}. PyTorch advises against backward passes under autocast."
        if call == BACKWARD
        else f"Autocast casts the matrix products of an update, such as those of an orthogonalized or preconditioned"
        f" one, to {dtype}. It is meant for the forward pass and the loss."
    )
    return f"{_runs(call, caller, line)}. {effect}"


def _fix(call: str, line: str) -> str:
    at = f" at {line}" if line else ""
    return f"Move {call}{at} out of the autocast block, which is meant for the forward pass and the loss."


def _fix_stale(call: str, line: str) -> str:
    at = f" at {line}" if line else ""
    return (
        f"Leave autocast before {call}{at}: enter a context of its own for each forward pass and its loss. A nested"
        " autocast(enabled=False) does not drop the copies. If the context has to stay open, give it"
        " cache_enabled=False. Those passes computed the loss and gradients of old weights: compare"
        " with a run that has this fix."
    )


def _shows(finding: Finding, _: str) -> bool:
    """Whether losses and gradients were those of old weights. Otherwise the loss is hardly another one."""
    return bool(finding.evidence.get("stale_updates"))


VERDICT = Verdict(
    id="autocast-scope",
    severity="ticket",
    title="Backward or optimizer inside autocast",
    question="Does backward() or the optimizer run inside an autocast context?",
    columns=(),
    events=("usage.autocast_scope",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.autocast_scope", _conclude, repeats=True),
    explains=("diverged", "stagnation"),
    shows=_shows,
)
