"""launch-bound: the GPU idles inside the steps, so that half precision cannot make them faster.

NVML counts the share of time in which at least one kernel runs. What the steps wait for their data is measured beside
it and left out.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, RunFacts, under_autocast
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

MIN_SECONDS = 30.0
MIN_READINGS = 6
"""Time and readings of one window. A reading, every five seconds, covers the last second at most."""

MAX_BUSY_SHARE = 0.5
"""Share of the time inside the steps with a kernel on the device. Below a half, shorter kernels gain less than the
device idles."""

MAX_WAIT_SHARE = 0.2
"""Share of the time that steps wait for data, above which that is what limits them."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    half: bool = False
    """Whether a device trains under autocast in half precision."""
    since: int = -1
    readings: int = 0
    busy: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    """The open window: its first step, readings of the device, their sum, time of the steps and of their waits."""
    share: float = 0.0
    wait_share: float = 0.0
    window_seconds: float = 0.0
    window_readings: int = 0
    """The window that opened the verdict."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("autocast.entered"):
        if isinstance(part, View):
            state = _rows(state, part) if state.half else state
        elif isinstance(part, Event):
            is_half = part.data.get("grad") is not False and part.data.get("device") != "cpu"
            state = replace(state, half=state.half or is_half)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    """Adds rows to the window. It begins at a reading of the device, which few runs have."""
    if not state.readings and not measured(rows.scalar("device_utilization")).any():
        return state
    for step, (seconds, waited, busy) in rows.records("step_seconds", "wait_seconds", "device_utilization"):
        state = _row(state, step, seconds, waited, busy)
    return state


def _row(state: State, step: int, seconds: float, waited: float, busy: float) -> State:
    if not state.readings:
        return replace(state, since=step, readings=1, busy=busy) if busy >= 0 else state
    if seconds >= 0 and waited >= 0:
        state = replace(state, seconds=state.seconds + seconds, waited=state.waited + min(waited, seconds))
    if not busy >= 0:
        return state
    state = replace(state, readings=state.readings + 1, busy=state.busy + busy)
    is_whole = state.readings >= MIN_READINGS and state.seconds >= MIN_SECONDS
    return _judged(state, step) if is_whole else state


def _judged(state: State, step: int) -> State:
    """Judges a complete window and begins another one."""
    share, wait_share = state.busy / state.readings, state.waited / state.seconds
    is_idle = wait_share <= MAX_WAIT_SHARE and share / (1 - wait_share) < MAX_BUSY_SHARE
    if is_idle and not state.opened.active:
        numbers = (share, wait_share, state.seconds, state.readings)
        state = replace(state, **dict(zip(_NUMBERS, numbers, strict=True)))
    opened = state.opened.at(state.since, step) if is_idle else state.opened.over()
    return replace(state, opened=opened, readings=0, busy=0.0, seconds=0.0, waited=0.0)


_NUMBERS = ("share", "wait_share", "window_seconds", "window_readings")


def _conclude(state: State) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The GPU runs a kernel in {wording.percent(state.share)} of the time",
        cause=f"In {state.window_readings} readings of NVML during {state.window_seconds:.0f} s of steps up to step"
        f" {state.opened.step}, a kernel ran in {wording.percent(state.share)} of the time. The steps waited for data"
        f" and other work between them in {wording.percent(state.wait_share)} of theirs. In the rest, at most"
        f" {wording.percent(_inside(state))} had a kernel: the device waits for the host, which launches kernels more"
        " slowly than it runs them, synchronizes, or computes on the CPU. Half precision shortens kernels and not"
        " that.",
        fix="Enlarge the batch until the GPU is busy. Compile the model: torch.compile(model, mode='reduce-overhead'),"
        " which launches whole CUDA graphs. Use an optimizer with fused=True or foreach=True. Remove .item(), .cpu()"
        " and prints of device values from the step.",
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _inside(state: State) -> float:
    return state.share / (1 - state.wait_share)


def _evidence(state: State) -> dict[str, Any]:
    return {
        "device_utilization": round(state.share, 4),
        "wait_share": round(state.wait_share, 4),
        "utilization_inside_steps": round(_inside(state), 4),
        "seconds": round(state.window_seconds, 1) if math.isfinite(state.window_seconds) else None,
        "readings": state.window_readings,
    }


def _on_a_device(facts: RunFacts) -> bool:
    return facts.has_device and under_autocast(facts)


VERDICT = Verdict(
    id="launch-bound",
    severity="ticket",
    title="GPU idle inside the steps",
    question="Does the GPU idle inside the steps, so that half precision cannot make them faster?",
    columns=("step_seconds", "wait_seconds", "device_utilization"),
    events=("autocast.entered",),
    state=State,
    judge=judge,
    needs=(Readings("device_utilization", MIN_READINGS),),
    applies=_on_a_device,
    explains=("slower-than-fp32",),
)
