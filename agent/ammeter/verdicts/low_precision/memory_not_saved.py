"""memory-not-saved: GPU memory is short, fragmented, or not reduced by half precision.

The verdict covers three cases: retries of the allocator, much reserved memory that cannot be used, and a peak as high
as that of the float32 baseline.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.readings import Readings
from ammeter.verdicts.framework.run_comparison import Memory, RunComparison
from ammeter.wire.columns import View, measured

WARM_UP_STEPS = 20
"""Steps in which retries are normal: cuDNN tries algorithms with workspaces that need not fit."""

RETRY_READINGS = 3
RETRY_WINDOW_STEPS = 1000
"""Readings, at least a second apart, with new retries within so many steps. Each retry waits for the device and returns
all cached memory; one or two belong to a validation or an unusually long batch."""

UNUSED_RATIO = 2.0
UNUSED_READINGS = 10
MIN_UNUSED_BYTES = 2.0**30
"""Readings in a row in which torch reserved UNUSED_RATIO times the peak of its tensors. The difference must also be at
least a GiB. Half of the memory was then unused even at the peak. Rounding to blocks of 2 and 20 MiB, and batches of
different lengths, cause up to about a third."""

FRAGMENTED_RATIO = 1.2
"""Reserved over used memory above which the shortage is due to fragmentation: a fifth is idle while nothing fits."""

UNSAVED_RATIO = 0.95
"""Peak over that of the float32 baseline from which nothing was saved. Activations, which autocast halves, are most of
the memory in training; if the weights are most of it, some percent remain, and the allocator rounds by less."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    retries: float = math.nan
    retry_steps: tuple[int, ...] = ()
    """Steps of the last readings with new retries."""
    unused: int = 0
    since: int = -1
    used: float = 0.0
    reserved: float = 0.0
    short: bool = False


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    if not len(view) or not measured(view.scalar("device_reserved_bytes")).any():
        return state, None
    if len(view) > 1 and _is_quiet(state, view):
        return replace(state, retries=float(view.scalar("device_alloc_retries")[-1])), None
    after = state
    names = ("device_allocated_bytes", "device_reserved_bytes", "device_alloc_retries")
    for step, (used, reserved, retries) in view.records(*names):
        if reserved >= 0 and used >= 0:
            after = _read(after, step, used, reserved, retries)
    return after, changed(_conclude, state, after)


def _is_quiet(state: State, view: View) -> bool:
    """Whether each row is read, and none has new retries or much unused memory: only the number of retries counts."""
    if state.opened.active or state.unused or len(state.retry_steps) == RETRY_READINGS:
        return False
    used, reserved = view.scalar("device_allocated_bytes"), view.scalar("device_reserved_bytes")
    retries = np.append(np.float32(state.retries), view.scalar("device_alloc_retries"))
    if not ((used >= 0) & (reserved >= 0) & (reserved < UNUSED_RATIO * used)).all():
        return False
    return not (retries[1:] > retries[:-1]).any()


def _read(state: State, step: int, used: float, reserved: float, retries: float) -> State:
    retried = step >= WARM_UP_STEPS and retries > state.retries
    retry_steps = (*state.retry_steps, step)[-RETRY_READINGS:] if retried else state.retry_steps
    mostly_unused = used > 0 and reserved >= UNUSED_RATIO * used and reserved - used >= MIN_UNUSED_BYTES
    unused = min(UNUSED_READINGS, state.unused + 1) if mostly_unused else 0
    since = step if unused == 1 else state.since
    state = replace(state, retries=retries, retry_steps=retry_steps, unused=unused, since=since)
    short = len(retry_steps) == RETRY_READINGS and step - retry_steps[0] < RETRY_WINDOW_STEPS
    if short or unused == UNUSED_READINGS:
        opened = state.opened.at(retry_steps[0] if short else since, step)
        return replace(state, opened=opened, used=used, reserved=reserved, short=short)
    return replace(state, opened=state.opened.over()) if state.opened.active else state


def _conclude(state: State) -> Finding:
    title, cause = _retried_allocations(state) if state.short else _unused_memory(state)
    fragmented = state.reserved >= FRAGMENTED_RATIO * state.used
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause=cause,
        fix=_defragment() if fragmented else _use_less(),
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _retried_allocations(state: State) -> tuple[str, str]:
    """Returns title and cause."""
    return "GPU memory allocations fail and are retried", (
        f"torch repeatedly runs short of GPU memory: {wording.count(int(state.retries), 'allocation')} failed so"
        " far and had to be retried. Before each retry, torch waits for the device and releases its cached memory,"
        f" which makes the step slow. torch reserves {_gib(state.reserved)}, of which tensors used {_gib(state.used)}"
        " at their peak."
    )


def _unused_memory(state: State) -> tuple[str, str]:
    """Returns title and cause."""
    reserved, used = _gib(state.reserved), _gib(state.used)
    return f"At least half of the reserved GPU memory is unused: {reserved} reserved, {used} used", (
        f"torch reserves {reserved} of GPU memory, but tensors used {used} at their peak: the rest is in fragments"
        " that are too small for the requests, or remains from a larger use."
    )


def _evidence(state: State) -> dict[str, Any]:
    return {
        "reserved_bytes": state.reserved,
        "allocated_peak_bytes": state.used,
        "reserved_over_allocated": round(state.reserved / state.used, 2) if state.used > 0 else None,
        "alloc_retries": wording.number(state.retries),
    }


def judge_pair(state: State, pair: RunComparison) -> tuple[State, Finding | None]:
    """Compares the peak of a half-precision run with its float32 baseline, for the same work."""
    halves = pair.run.precision in ("float16", "bfloat16") and pair.baseline.precision == "float32"
    memory = pair.memory if halves else None
    large = memory is not None and memory.baseline >= MIN_UNUSED_BYTES
    return state, _unsaved(pair, memory) if memory and large and memory.ratio >= UNSAVED_RATIO else None


def _unsaved(pair: RunComparison, memory: Memory) -> Finding:
    mine, theirs = _gib(memory.run), _gib(memory.baseline)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Half precision saves no GPU memory: {mine} against {theirs}",
        cause=f"Half precision saves no GPU memory in this run: tensors used {mine} at their peak in"
        f" {pair.run.precision}, and {theirs} in the float32 baseline {pair.baseline.name}".rstrip()
        + ". Either activations are a small part of the memory, or additional copies use what autocast saves.",
        fix="Record a memory snapshot over two steps with torch.cuda.memory._record_memory_history() and"
        ' torch.cuda.memory._dump_snapshot("memory.pickle"), and open it on pytorch.org/memory_viz. Look for'
        " activations in float32 (.float() in the model, losses over whole sequences), half-precision copies of"
        " weights, and a larger batch. If weights and optimizer state use most of the memory, autocast saves little:"
        " shard them, or use activation checkpointing.",
        first_step=memory.first,
        opened_step=memory.last,
        last_step=memory.last,
        evidence={
            "allocated_peak_bytes": memory.run,
            "baseline_peak_bytes": memory.baseline,
            "ratio": round(memory.ratio, 3),
            "baseline": pair.baseline.name,
        },
    )


def _defragment() -> str:
    return (
        "Start the run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in its environment, which reduces"
        " fragmentation. If validation needs far more memory than training, call torch.cuda.empty_cache() after it."
    )


def _use_less() -> str:
    return (
        "Halve the batch size and accumulate gradients over 2 batches, or recompute the largest blocks in backward with"
        " torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False): tensors use the memory, not fragmentation."
    )


def _gib(number: float) -> str:
    return f"{number / 2**30:.1f} GiB"


VERDICT = Verdict(
    id="memory-not-saved",
    severity="ticket",
    title="GPU memory short or not saved",
    question="Is GPU memory repeatedly short, is half of the reserved memory unused, or does half precision save none?",
    columns=("device_allocated_bytes", "device_reserved_bytes", "device_alloc_retries"),
    events=(),
    needs=(Readings("device_reserved_bytes", UNUSED_READINGS),),
    applies=lambda facts: facts.has_device,
    state=State,
    judge=judge,
    runs=judge_pair,
)
