"""slower-than-fp32: training in half precision takes longer than the same steps in float32."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison, Speed

SLOWER = 1.05
"""Ratio of the median step times. Medians of the same program on one machine agree within 2 or 3 %, so a twentieth is
no chance, and mixed precision is meant to be faster. In addition, three quarters of the steps must be slower than the
baseline's median."""

LITTLE = 0.9
"""Share of eligible FLOPs in low precision below which the finding mentions it. Autocast runs all of them in low
precision, except a few layers that are kept in float32 on purpose."""

HALVES = ("float16", "bfloat16")


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    compared = pair.run.precision in HALVES and pair.baseline.precision == "float32"
    speed = pair.speed if compared else None
    if speed is None or speed.ratio < SLOWER or not speed.clear:
        return state, None
    return state, _conclude(pair, speed)


def _conclude(pair: RunComparison, speed: Speed) -> Finding:
    dtype = pair.run.precision
    shares = pair.run.curve("low_precision_share").values
    share = float(shares[-1]) if len(shares) else None
    little = share is not None and share < LITTLE
    only = f" Only {wording.percent(share or 0)} of the FLOPs that could run in {dtype} do." if little else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{speed.ratio:.2f} times as slow as the float32 baseline",
        cause=f"A {speed.per} takes {_duration(speed.run)} in {dtype} against {_duration(speed.baseline)} of the"
        f" float32 baseline {pair.baseline.name}".rstrip()
        + f": the median of {wording.count(speed.steps, 'step')}, the same ones of both, from {speed.first} to"
        f" {speed.last}.{only}",
        fix=_fix(str(dtype), little),
        first_step=speed.first,
        opened_step=speed.last,
        last_step=speed.last,
        evidence={
            "ratio": round(speed.ratio, 3),
            "seconds": speed.run,
            "baseline_seconds": speed.baseline,
            "per": speed.per,
            "steps": speed.steps,
            "low_precision_share": share,
            "baseline": pair.baseline.name,
        },
    )


def _fix(dtype: str, little: bool) -> str:
    first = (
        "Bring the matrix products under autocast: look for .float(), autocast(enabled=False) and custom Functions."
        if little
        else "Look for what only this run does: torch.autograd.set_detect_anomaly(True) left on, checks of every"
        " gradient for NaN, .item() in each step, casts by hand."
    )
    return (
        f"{first} torch.profiler over ten steps of both shows which calls are new. Where there are none, the model is"
        f" too small for {dtype} to gain, or the device has no units for it: take a larger batch, or stay with float32."
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
