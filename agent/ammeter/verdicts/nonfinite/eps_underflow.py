"""eps-underflow: an eps that is zero in its dtype does not prevent a division by zero."""

from __future__ import annotations

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

RAISED = {"float16": 1e-4, "bfloat16": 1e-37}
"""Recommended eps, slightly above the smallest normal number, 2^-14 and 2^-126: below it an eps loses bits before it
becomes zero."""

SMALLEST = {"float16": "6e-08 (2^-24)", "bfloat16": "9e-41 (2^-133)"}


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    where, dtype = str(data.get("where", "")) or "the optimizer", str(data.get("dtype", "float16"))
    eps, bad = float(data.get("eps", 0.0)), data.get("bad")
    is_norm = bad is not None
    smallest = f", whose smallest number is {SMALLEST[dtype]}" if dtype in SMALLEST else ""
    harm = (
        f"an input without variance becomes NaN there; tried, {100 * float(bad or 0):.0f} % of what it gave was NaN."
        if is_norm
        else "a weight whose gradients were zero is divided 0 by 0 and becomes NaN, with finite gradients and no skip."
    )
    caller = str(data.get("caller") or "")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The eps of {where} is zero in {dtype}",
        cause=f"{where}{f' ({caller})' if caller else ''} adds an eps of {eps:g} in {dtype}{smallest}, so it adds"
        f" nothing: {harm}",
        fix=_fix(where, dtype, is_norm),
        module=where if is_norm else None,
        caller=caller or None,
        evidence={"where": where, "eps": eps, "dtype": dtype, "nan_share": bad},
        **lifecycle_fields(state.opened),
    )


def _fix(where: str, dtype: str, is_norm: bool) -> str:
    raised = f"eps={RAISED[dtype]:g}" if dtype in RAISED else "an eps above the dtype's smallest normal number"
    if is_norm:
        return f"Keep {where} in float32 with {where}.float(), or give it {raised}."
    return (
        "Keep the weights, and with them the optimizer's state, in float32, and let torch.autocast do the forward"
        f" pass in {dtype}; then the present eps is right. Where the state must stay in {dtype}, give the optimizer"
        f" {raised}. Weights that are NaN already come back only from a checkpoint."
    )


VERDICT = Verdict(
    id="eps-underflow",
    severity="ticket",
    title="An eps is zero in its dtype",
    question="Is an eps so small that it is zero in the dtype it is added in?",
    columns=(),
    events=("usage.eps_below_dtype",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.eps_below_dtype", _conclude),
    explains=(
        "nonfinite-weights",
        "nonfinite-loss",
        "nonfinite-gradient",
        "scale-collapse",
        "gradient-underflow",
        "half-master-weights",
        "half-optimizer-state",
    ),
)
