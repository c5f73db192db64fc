"""scaler-rebuilt: another scaler takes over during a run and starts from its initial scale."""

from __future__ import annotations

import math
from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller = str(data.get("caller") or "") or None
    first, before = _number(data, "scale"), _number(data, "scale_before")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"A new GradScaler replaced the run's own at step {state.opened.first}",
        cause=f"From step {state.opened.first} on, another GradScaler steps {data.get('optimizer') or 'the optimizer'}"
        f"{f' at {caller}' if caller else ''}{_from(first, before)}. The new scaler does not have the scale that the"
        f" previous one had found: {_costs(first, before)}.",
        fix="Create the GradScaler once, before the loop over the epochs, and no other one later. If another object has"
        " to replace it, copy the state: new.load_state_dict(old.state_dict()).",
        caller=caller,
        evidence={"scale": first, "scale_before": before, "optimizer": data.get("optimizer")},
        **lifecycle_fields(state.opened),
    )


def _number(data: dict[str, Any], name: str) -> float | None:
    value = data.get(name)
    return float(value) if isinstance(value, float | int) and math.isfinite(value) and value > 0 else None


def _from(first: float | None, before: float | None) -> str:
    starts = "" if first is None else f", with an initial scale of {wording.scale(first)}"
    return starts if before is None else f"{starts}, whereas the previous one had reached {wording.scale(before)}"


def _costs(first: float | None, before: float | None) -> str:
    """Describes the cost: skipped steps after a rise of the scale, small gradients after a fall."""
    bits = math.log2(first / before) if first and before else 0.0
    if bits >= 1:
        return f"with gradients as before, about {wording.count(round(bits), 'step')} are skipped until it has fallen"
    if bits <= -1:
        return f"for {-bits:.0f} growth intervals small gradients that the previous scale preserved may become zero"
    return "steps may be skipped, or small gradients become zero, until it has found its scale again"


VERDICT = Verdict(
    id="scaler-rebuilt",
    severity="ticket",
    title="Scaler rebuilt",
    question="Did another GradScaler replace the first one during the run?",
    columns=(),
    events=("usage.scaler_rebuilt",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.scaler_rebuilt", _conclude),
    explains=("overflow-storm",),
)
