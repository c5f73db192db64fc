"""fp32-fallback: a relevant share of the matrix work under autocast runs in float32."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.low_precision.kernel_fallbacks import Fallbacks, Place, fallback_judge, line_text, modules_text

FLOAT32_SLOWDOWN = 8.0
"""Duration of a matrix product in float32 relative to tensor cores: 8 on a V100 (15.7 against 125 TFLOP/s), 16 on an
A100 (19.5 against 312) and 15 on an H100, by their data sheets."""

MIN_SHARE = 0.05
"""Share of the FLOPs in float32: 5 % make the matrix products of a forward pass at least a third longer (0.95 + 8 x
0.05 = 1.35). Operators that are kept in float32 on purpose, such as routers, rotary angles or a norm, are below 1 %."""

COUNTED_REASONS = ("autocast-disabled", "wrong-device", "custom-function", "policy", "float64")
"""Reasons that count. autocast-off is not among them: a model of half-precision weights without autocast, such as one
with float32 adapters, casts on purpose."""


def _counts(place: Place) -> bool:
    return place.reason in COUNTED_REASONS


def _conclude(state: Fallbacks) -> Finding:
    place = state.largest
    dtype, half = place.dtype or "float32", state.half or "low precision"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{wording.percent(state.share)} of the matrix FLOPs run in {dtype}",
        cause=f"{wording.percent(state.share)} of the matrix FLOPs of a forward pass run in {dtype} instead of {half},"
        f" the largest share in {modules_text(place)}{line_text(place)}: {_reason(place)}.{_slowdown(state)}",
        fix=_fix(place, half if state.half else "bfloat16"),
        module=place.module or None,
        caller=place.caller or None,
        evidence=state.evidence(),
        **lifecycle_fields(state.opened),
    )


def _slowdown(state: Fallbacks) -> str:
    if not state.gpu:
        return " This costs speed, not accuracy."
    times = 1 + state.share * (FLOAT32_SLOWDOWN - 1)
    return f" On a GPU with tensor cores, the matrix products then take about {times:.1f} times as long."


def _reason(place: Place) -> str:
    return {
        "autocast-disabled": "autocast is enabled for other parts of the model, but not for this call",
        "wrong-device": "autocast is enabled for another device type than that of the tensors",
        "custom-function": "the call is in an autograd.Function of the program, and autocast does not cast its operator"
        "",
        "policy": f"autocast runs {place.op} in the dtype of its inputs",
        "float64": "the input is float64, which autocast does not cast",
    }[place.reason]


def _fix(place: Place, half: str) -> str:
    module = place.module or "the model"
    device, line = "device_type=x.device.type", line_text(place)
    return {
        "autocast-disabled": f"Move the call{line} into torch.autocast({device}, dtype=torch.{half}), or remove the"
        " autocast(enabled=False) around it. If an operator needs float32, disable autocast for that operator only.",
        "wrong-device": f"Enter torch.autocast({device}, dtype=torch.{half}), where x is the model's input, instead of"
        " naming a device type.",
        "custom-function": f"Decorate the forward of the autograd.Function{line} with"
        f' @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.{half}) and its backward with'
        ' @torch.amp.custom_bwd(device_type="cuda"); use device_type="cpu" on the CPU.',
        "policy": f"Cast the inputs of {place.op}{line} with .to(torch.{half}), or use torch.matmul,"
        " torch.nn.functional.linear or a convolution, which autocast casts.",
        "float64": f"Convert the input of {module}{line} to float32 with .float() where it enters the program, for"
        " example from a NumPy array, and convert float64 weights too.",
    }[place.reason]


VERDICT = Verdict(
    id="fp32-fallback",
    severity="ticket",
    title="Matrix work in float32",
    question="Does a relevant share of the matrix work run in float32 although the run uses mixed precision?",
    columns=(),
    events=("kernel.fallback", "autocast.entered"),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=Fallbacks,
    rows=False,
    judge=fallback_judge(_conclude, MIN_SHARE, _counts),
    explains=("slower-than-fp32",),
)
