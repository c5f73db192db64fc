"""stale-stack: torch is too old, or the GPU has no tensor cores for the run's dtype, or computes wrong in it."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.float16 import is_wrong_on
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Hello

OLDEST_TORCH = (2, 4)
"""First torch with GradScaler, custom_fwd and custom_bwd for every device. It is the oldest that Ammeter supports."""

TENSOR_CORES = {"float16": (7, 0), "bfloat16": (8, 0)}
"""Compute capability of the first GPUs with tensor cores for the dtype: Volta and Ampere (CUDA C++ Programming Guide,
compute capabilities). Below it, float16 has at most twice the rate of float32, and bfloat16 is emulated."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    torch: str = ""
    device: str = ""
    capability: str = ""
    dtype: str = ""
    """Autocast's dtype on a GPU without tensor cores for it, with gradients recorded."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    if not view.frames:
        return state, None
    before = state
    for part in view.parts("hello", "autocast.entered"):
        if isinstance(part, Hello):
            state = _started(state, part.environment)
        elif isinstance(part, Event):
            state = _entered(state, part)
    return state, changed(_conclude, before, state)


def _started(state: State, environment: dict[str, str]) -> State:
    torch, device, capability = (environment.get(name, "")[:80] for name in ("torch", "device", "capability"))
    state = replace(state, torch=torch, device=device, capability=capability)
    return replace(state, opened=state.opened.at(0, 0)) if _old(torch) and not state.opened.active else state


def _entered(state: State, event: Event) -> State:
    dtype = str(event.data.get("dtype", ""))[:20]
    training_on_gpu = event.data.get("device") == "cuda" and bool(event.data.get("grad"))
    unfit = _without_cores(dtype, state.capability) or _is_wrong(dtype, state)
    if not training_on_gpu or state.dtype or not unfit:
        return state
    return replace(state, dtype=dtype, opened=state.opened.at(event.step, event.step))


def _old(torch: str) -> bool:
    version = _version(torch)
    return version is not None and version < OLDEST_TORCH


def _without_cores(dtype: str, capability: str) -> bool:
    version = _version(capability)
    return version is not None and dtype in TENSOR_CORES and version < TENSOR_CORES[dtype]


def _is_wrong(dtype: str, state: State) -> bool:
    return dtype == "float16" and is_wrong_on(state.device, state.capability)


def _version(text: str) -> tuple[int, int] | None:
    """Returns (2, 13) for '2.13.0+cpu'; None if the text is no version."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def _conclude(state: State) -> Finding:
    cause, fix = [], []
    if _old(state.torch):
        oldest = ".".join(map(str, OLDEST_TORCH))
        cause.append(
            f"The run uses torch {state.torch}, which is older than {oldest}: its mixed precision has other APIs, fewer"
            " fused attention kernels, and bugs that later versions fix."
        )
        driver = " and a GPU driver that supports it" if state.capability else ""
        fix.append(f"Install a newer torch{driver}: `pip install 'torch>={oldest}'`.")
    if _is_wrong(state.dtype, state):
        cause.append(
            f"Autocast uses float16 on a {state.device}. Public threads, such as"
            " https://github.com/ultralytics/yolov5/issues/7908, report that convolutions in float16 return NaN or"
            " zeros on this series of GPUs, which has no tensor cores."
        )
        fix.append(
            "Train in float32, with autocast off. bfloat16 is emulated on this GPU: right, but slow. ammeter doctor"
            " compares a convolution in float16 with one in float32."
        )
    elif state.dtype:
        cause.append(
            f"The GPU, {state.device} with compute capability {state.capability}, has no tensor cores for"
            f" {state.dtype}, the dtype of autocast: mixed precision may save memory, but hardly any time."
        )
        fix.append(_another_dtype(state))
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(state),
        cause=" ".join(cause),
        fix=" ".join(fix),
        evidence={"torch": state.torch, "device": state.device, "capability": state.capability, "dtype": state.dtype},
        **lifecycle_fields(state.opened),
    )


def _title(state: State) -> str:
    if _is_wrong(state.dtype, state):
        return "This series of GPUs is known for wrong results in float16"
    return f"The GPU has no tensor cores for {state.dtype}" if state.dtype else f"torch {state.torch} is outdated"


def _another_dtype(state: State) -> str:
    needed = ".".join(map(str, TENSOR_CORES[state.dtype]))
    newer = f"a GPU of compute capability {needed} or higher"
    if _without_cores("float16", state.capability) or is_wrong_on(state.device, state.capability):
        return f"Train in float32 on this GPU, or use {newer}."
    return f"Use torch.autocast('cuda', dtype=torch.float16) with torch.amp.GradScaler('cuda'), or use {newer}."


VERDICT = Verdict(
    id="stale-stack",
    severity="ticket",
    title="Outdated torch or GPU",
    question="Is torch outdated, or does the GPU lack tensor cores for the dtype of the run, or compute wrong in it?",
    columns=(),
    events=("autocast.entered",),
    state=State,
    rows=False,
    judge=judge,
    explains=("slower-than-fp32",),
)
