"""fp32-fallback: a relevant share of the matrix work under autocast runs in float32."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.low_precision.kernel_fallbacks import Fallbacks, Place, at, gathered, named

SLOWER = 8.0
"""Duration of a matrix product in float32 relative to tensor cores: 8 on a V100 (15.7 against 125 TFLOP/s), 16 on an
A100 (19.5 against 312) and 15 on an H100, by their data sheets."""

MIN_SHARE = 0.05
"""Share of the FLOPs in float32: 5 % make the matrix products of a forward pass at least a third longer (0.95 + 8 x
0.05 = 1.35). Operators that are kept in float32 on purpose, such as routers, rotary angles or a norm, are below 1 %."""

REASONS = ("autocast-disabled", "wrong-device", "custom-function", "policy", "float64")
"""Reasons that count. autocast-off is not among them: a model of half-precision weights without autocast, such as one
with float32 adapters, casts on purpose."""


def _counts(place: Place) -> bool:
    return place.reason in REASONS


def _conclude(state: Fallbacks) -> Finding:
    place = state.gravest
    dtype, half = place.dtype or "float32", state.half or "low precision"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{wording.percent(state.share)} of the matrix work is left in float32",
        cause=f"{wording.percent(state.share)} of the FLOPs of a forward pass ran in {dtype} instead of {half}, the"
        f" largest part in {named(place)}{at(place)}: {_why(place)}. The matrix products then take about"
        f" {1 + state.share * (SLOWER - 1):.1f} times as long on a GPU with tensor cores.",
        fix=_fix(place, half if state.half else "bfloat16"),
        module=place.module or None,
        caller=place.caller or None,
        evidence=state.evidence(),
        **lifecycle_fields(state.opened),
    )


def _why(place: Place) -> str:
    return {
        "autocast-disabled": "autocast is on for other parts of the model, but not there",
        "wrong-device": "autocast is on for another type of device than the one its tensors lie on",
        "custom-function": "it runs in an autograd.Function of the program, by an operator autocast does not know",
        "policy": f"autocast runs {place.op} in the precision of what it is given",
        "float64": "what goes into it is float64, which autocast leaves as it is",
    }[place.reason]


def _fix(place: Place, half: str) -> str:
    module = place.module or "the model"
    device = "device_type=x.device.type"
    return {
        "autocast-disabled": f"Move the call{at(place)} into torch.autocast({device}, dtype=torch.{half}), or take away"
        f" the autocast(enabled=False) around it. Where float32 is needed, keep it to the one operator that needs it.",
        "wrong-device": f"Open torch.autocast({device}, dtype=torch.{half}) where x is the model's input, instead of"
        " naming a device.",
        "custom-function": f'Put @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.{half}) on the forward of'
        f' the function{at(place)} and @torch.amp.custom_bwd(device_type="cuda") on its backward; "cpu" where it runs'
        " there.",
        "policy": f"Cast what goes into {place.op}{at(place)} with .to(torch.{half}), or write it as torch.matmul,"
        " linear or a convolution, which autocast casts by itself.",
        "float64": f"Bring the input of {module}{at(place)} to float32 with .float() where it comes into the program,"
        " for instance from a NumPy array, and its weights with them.",
    }[place.reason]


VERDICT = Verdict(
    id="fp32-fallback",
    severity="ticket",
    title="Matrix work in float32",
    question="Does a real share of the matrix work run in float32 although the run is in mixed precision?",
    columns=(),
    events=("kernel.fallback", "autocast.entered"),
    state=Fallbacks,
    rows=False,
    judge=gathered(_conclude, MIN_SHARE, _counts),
    explains=("slower-than-fp32",),
)
