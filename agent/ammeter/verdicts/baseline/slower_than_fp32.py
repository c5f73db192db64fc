"""slower-than-fp32: training in half precision takes longer than the same steps in float32."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison, Speed

MAX_SLOWDOWN = 1.05
"""Ratio of the median step times. Medians of the same program on one machine agree within 2 or 3 %, so a twentieth is
no chance, and mixed precision is meant to be faster. In addition, three quarters of the steps must be slower than the
baseline's median."""

MIN_LOW_PRECISION_SHARE = 0.9
"""Share of eligible FLOPs in low precision below which the finding mentions it. Autocast runs all of them in low
precision, except a few layers that are kept in float32 on purpose."""

HALF_DTYPES = ("float16", "bfloat16")


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    compared = pair.run.precision in HALF_DTYPES and pair.baseline.precision == "float32"
    speed = pair.speed if compared else None
    if speed is None or speed.ratio < MAX_SLOWDOWN or not speed.clear:
        return state, None
    return state, _conclude(pair, speed)


def _conclude(pair: RunComparison, speed: Speed) -> Finding:
    dtype = pair.run.precision
    shares = pair.run.curve("low_precision_share").values
    share = float(shares[-1]) if len(shares) else None
    little = share is not None and share < MIN_LOW_PRECISION_SHARE
    only = f" Only {wording.percent(share or 0)} of the FLOPs that could run in {dtype} do so." if little else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Training takes {speed.ratio:.2f} times as long as in the float32 baseline",
        cause=_cause(pair, speed, only),
        fix=_fix(str(dtype), little),
        first_step=speed.first,
        opened_step=speed.last,
        last_step=speed.last,
        evidence=_evidence(pair, speed, share),
    )


def _cause(pair: RunComparison, speed: Speed, only: str) -> str:
    dtype = pair.run.precision
    return (
        f"Training in {dtype} is slower than the float32 baseline {pair.baseline.name}".rstrip()
        + f": a {speed.per} takes {_duration(speed.run)} against {_duration(speed.baseline)}, the medians of the same"
        f" {wording.count(speed.steps, 'step')} of both runs, from step {speed.first} to {speed.last}.{only}"
    )


def _evidence(pair: RunComparison, speed: Speed, share: float | None) -> dict[str, Any]:
    return {
        "ratio": round(speed.ratio, 3),
        "seconds": speed.run,
        "baseline_seconds": speed.baseline,
        "per": speed.per,
        "steps": speed.steps,
        "low_precision_share": share,
        "baseline": pair.baseline.name,
    }


def _fix(dtype: str, little: bool) -> str:
    first = (
        "Move the matrix products into autocast: search the program for .float(), autocast(enabled=False) and custom"
        " autograd Functions."
        if little
        else "Remove work that the baseline does not do: torch.autograd.set_detect_anomaly(True), NaN checks of every"
        " gradient, .item() in each step, and casts in the program."
    )
    return (
        f"{first} Compare torch.profiler traces of ten steps of both runs to find the additional calls. If there are"
        f" none, the model is too small to benefit from {dtype}, or the device has no hardware support for it: use a"
        " larger batch, or stay with float32."
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


VERDICT = Verdict(
    id="slower-than-fp32",
    severity="ticket",
    title="Half precision slower than float32",
    question="Does training in half precision take longer than the same steps of its float32 baseline?",
    columns=("step_seconds", "samples", "low_precision_share"),
    events=("autocast.entered",),
    runs=judge,
)
