"""memory-not-saved: GPU memory is short, fragmented, or not reduced by half precision.

The verdict covers three cases: retries of the allocator, much reserved memory that cannot be used, and a peak as high
as that of the float32 baseline.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.run_comparison import Memory, RunComparison
from ammeter.wire.columns import View, measured

SETTLED = 20
"""Steps in which retries are normal: cuDNN tries algorithms with workspaces that need not fit."""

RISES = 3
WINDOW = 1000
"""Readings, at least a second apart, with new retries within so many steps. Each retry waits for the device and returns
all cached memory; one or two belong to a validation or an unusually long batch."""

APART = 2.0
READINGS = 10
MIN_BYTES = 2.0**30
"""Readings in a row in which torch reserved APART times the peak of its tensors. The difference must also be at least a
GiB. Half of the memory was then unused even at the peak. Rounding to blocks of 2 and 20 MiB, and batches of different
lengths, cause up to about a third."""

SPLIT = 1.2
"""Reserved over used memory above which the shortage is due to fragmentation: a fifth is idle while nothing fits."""

SAVED = 0.95
"""Peak over that of the float32 baseline from which nothing was saved. Activations, which autocast halves, are most of
the memory in training; if the weights are most of it, some percent remain, and the allocator rounds by less."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    retries: float = math.nan
    rises: tuple[int, ...] = ()
    """Steps of the last readings with new retries."""
    apart: int = 0
    since: int = -1
    used: float = 0.0
    held: float = 0.0
    short: bool = False


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    if not len(view) or not measured(view.scalar("device_reserved_bytes")).any():
        return state, None
    after = state
    names = ("device_allocated_bytes", "device_reserved_bytes", "device_alloc_retries")
    for step, (used, held, retries) in view.records(*names):
        if held >= 0 and used >= 0:
            after = _read(after, step, used, held, retries)
    return after, changed(_conclude, state, after)


def _read(state: State, step: int, used: float, held: float, retries: float) -> State:
    rose = step >= SETTLED and retries > state.retries
    rises = (*state.rises, step)[-RISES:] if rose else state.rises
    wide = used > 0 and held >= APART * used and held - used >= MIN_BYTES
    apart = min(READINGS, state.apart + 1) if wide else 0
    since = step if apart == 1 else state.since
    state = replace(state, retries=retries, rises=rises, apart=apart, since=since)
    short = len(rises) == RISES and step - rises[0] < WINDOW
    if short or apart == READINGS:
        opened = state.opened.at(rises[0] if short else since, step)
        return replace(state, opened=opened, used=used, held=held, short=short)
    return replace(state, opened=state.opened.over()) if state.opened.active else state


def _conclude(state: State) -> Finding:
    held, used = _gib(state.held), _gib(state.used)
    split = state.held >= SPLIT * state.used
    if state.short:
        title = "The GPU's memory runs short again and again"
        cause = (
            f"Requests for GPU memory keep failing at first, {wording.count(int(state.retries), 'time')} so far: torch"
            " then waits for the device, gives back all it has cached, and asks again, which costs each of those steps"
            f" dearly. It holds {held}, of which tensors took {used} at their peak."
        )
    else:
        title = f"Half of the GPU memory that torch holds is of no use: {held} held, {used} used"
        cause = (
            f"torch holds {held} of the GPU's memory, and tensors took no more than {used} of it at their peak: the"
            " rest lies in pieces too small for what is asked, or was left over by something larger."
        )
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause=cause,
        fix=_in_pieces() if split else _too_much(),
        evidence={
            "reserved_bytes": state.held,
            "allocated_peak_bytes": state.used,
            "reserved_over_allocated": round(state.held / state.used, 2) if state.used > 0 else None,
            "alloc_retries": wording.number(state.retries),
        },
        **lifecycle_fields(state.opened),
    )


def against(state: State, pair: RunComparison) -> tuple[State, Finding | None]:
    """Compares the peak of a half-precision run with its float32 baseline, for the same work."""
    halves = pair.run.precision in ("float16", "bfloat16") and pair.baseline.precision == "float32"
    memory = pair.memory if halves else None
    large = memory is not None and memory.baseline >= MIN_BYTES
    return state, _nothing_saved(pair, memory) if memory and large and memory.ratio >= SAVED else None


def _nothing_saved(pair: RunComparison, memory: Memory) -> Finding:
    mine, theirs = _gib(memory.run), _gib(memory.baseline)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Half precision saves no memory: {mine} against {theirs}",
        cause=f"At their peak tensors took {mine} of the GPU's memory in {pair.run.precision}, and {theirs} in the"
        f" float32 baseline {pair.baseline.name}".rstrip()
        + ": there was nothing in activations for autocast to save, or it"
        " went into copies.",
        fix="See what is kept: torch.cuda.memory._record_memory_history() over two steps, and the snapshot on"
        " pytorch.org/memory_viz. Look for activations kept in float32 (.float() in the model, losses over whole"
        " sequences), weights cast and kept by hand, and a batch that grew. Where weights and optimizer take most of"
        " it, autocast saves little: shard them, or compute blocks again in backward.",
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


def _in_pieces() -> str:
    return (
        "Start the run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in its environment, so that free pieces"
        " join. Where validation needs far more memory than training, call torch.cuda.empty_cache() after it."
    )


def _too_much() -> str:
    return (
        "The memory is full, not in pieces: halve the batch and accumulate over 2, or compute the largest blocks again"
        " in backward with torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)."
    )


def _gib(number: float) -> str:
    return f"{number / 2**30:.1f} GiB"


VERDICT = Verdict(
    id="memory-not-saved",
    severity="ticket",
    title="GPU memory runs short",
    question="Does GPU memory run short again and again, is much of what torch holds of no use, or is none saved?",
    columns=("device_allocated_bytes", "device_reserved_bytes", "device_alloc_retries"),
    events=(),
    state=State,
    judge=judge,
    runs=against,
)
