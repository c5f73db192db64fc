"""eps-underflow: an eps that is zero in its dtype does not prevent a division by zero."""

from __future__ import annotations

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

SAFE_EPS = {"float16": 1e-4, "bfloat16": 1e-37}
"""Recommended eps, slightly above the smallest normal number, 2^-14 and 2^-126: below it an eps loses bits before it
becomes zero."""

SMALLEST = {"float16": "6e-08 (2^-24)", "bfloat16": "9e-41 (2^-133)"}
"""The smallest positive number of each dtype, as text."""


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    where, dtype = str(data.get("where", "")) or "the optimizer", str(data.get("dtype", "float16"))
    eps, bad = float(data.get("eps", 0.0)), data.get("bad")
    is_norm = bad is not None
    smallest = f", whose smallest number is {SMALLEST[dtype]}" if dtype in SMALLEST else ""
    harm = (
        f"An input without variance becomes NaN: in a test, {100 * float(bad or 0):.0f} % of the outputs were NaN."
        if is_norm
        else "The update of a weight whose gradients were zero is 0/0, which makes the weight NaN. A loss scaler does"
        " not skip that step, because it checks the gradients before the step and not the update."
    )
    caller = str(data.get("caller") or "")
    size = f", {eps:g}, is zero in {dtype}{smallest}" if eps else " is 0"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{where} divides by zero: its eps{f' of {eps:g}' if eps else ''} is zero in {dtype}",
        cause=f"The eps of {where}{f' ({caller})' if caller else ''}{size}, so it does not prevent a division by zero."
        f" {harm}",
        fix=_fix(where, dtype, eps, is_norm),
        module=where if is_norm else None,
        caller=caller or None,
        evidence={"where": where, "eps": eps, "dtype": dtype, "nan_share": bad},
        **lifecycle_fields(state.opened),
    )


def _fix(where: str, dtype: str, eps: float, is_norm: bool) -> str:
    if not eps or dtype not in SAFE_EPS:
        return f"Set the eps of {where} to torch's default."
    safe = f"eps={SAFE_EPS[dtype]:g}"
    if is_norm:
        return f"Keep {where} in float32 with {where}.float(), or set {safe}."
    return (
        "Keep the weights, and with them the optimizer's state, in float32, and run the forward pass in"
        f" torch.autocast(device_type, dtype=torch.{dtype}): an eps of {eps:g} is then right. If the state must stay in"
        f" {dtype}, set {safe} in {where}."
    )


VERDICT = Verdict(
    id="eps-underflow",
    severity="ticket",
    title="An eps is zero in its dtype",
    question="Is an eps zero in the dtype in which it is added?",
    columns=(),
    events=("usage.eps_below_dtype",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.eps_below_dtype", _conclude),
    explains=(
        "diverged",
        "nonfinite-weights",
        "activation-overflow",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-validation",
        "scale-collapse",
        "gradient-underflow",
        "half-master-weights",
        "half-optimizer-state",
    ),
)
