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
        fix=_fix(pair, str(dtype), little),
        first_step=speed.first,
        opened_step=speed.last,
        last_step=speed.last,
        evidence=_evidence(pair, speed, share),
    )


def _cause(pair: RunComparison, speed: Speed, only: str) -> str:
    dtype = pair.run.precision
    return (
        f"Training in {dtype} is slower than {wording.baseline(pair.baseline.name)} in float32: a {speed.per} takes"
        f" {_duration(speed.run)} against {_duration(speed.baseline)}, the medians of steps {speed.first} to"
        f" {speed.last} of both runs.{only}"
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


def _fix(pair: RunComparison, dtype: str, little: bool) -> str:
    if little:
        return (
            "Move the matrix products into autocast: search the program for .float(), autocast(enabled=False) and"
            " custom autograd Functions."
        )
    on_cpu = "device" in pair.run.environment and "cuda" not in pair.run.environment
    gain = f"a CPU without instructions for {dtype} gains nothing from it" if on_cpu else "a small model gains little"
    return (
        f"Compare torch.profiler traces of ten steps of both runs, and remove the calls that the baseline lacks: look"
        " for torch.autograd.set_detect_anomaly(True), NaN checks of every gradient, .item() in each step, and casts."
        f" If there are none, stay with float32: {gain}."
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
