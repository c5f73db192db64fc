"""broken-in-reduction: gradients are finite on every rank before their reduction, and not after it."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.verdicts.processes.replica_weights import MAX_LISTED_RANKS, ranks_text
from ammeter.wire.columns import Floats, measured

FLOAT16_BITS = 11
"""Significant bits of float16, the implicit one included, as in the column `reduce_bits`."""

FLOAT16_MAX = 65504.0
"""Largest number of float16, in which a sum or a cast of finite gradients overflows first."""

LARGEST = {8: ("bfloat16", 3.3895e38), FLOAT16_BITS: ("float16", FLOAT16_MAX), 24: ("float32", 3.4028e38)}
"""Significant bits -> the dtype of a reduction and its largest number."""


RECOVERED_READINGS = 10
"""Steps with finite gradients that close the verdict. They are read only after bad steps, so a few are no recovery."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    ranks: tuple[int, ...] = ()
    """The first MAX_LISTED_RANKS of the `bad` ranks whose gradients are not finite afterwards, of `of` ranks."""
    bad: int = 0
    of: int = 0
    steps: int = 0
    """Steps that were read with this result."""
    absmax: float = 0.0
    """Largest gradient of all ranks before the reduction, still multiplied by the loss scale."""
    bits: int = 0
    """Significant bits of the dtype that the program reduces in; 0 if it does not reduce itself."""
    fine: int = 0
    """Steps in a row that were read with finite gradients."""
    handed: float = -1.0
    """Largest finite number that was passed to all_reduce(); -1 if unknown."""
    is_buffer: bool = False
    """Whether NaN or Inf was in the buffers that were passed to all_reduce(), before the reduction."""


def judge(state: State, aligned: AlignedSteps) -> tuple[State, Finding | None]:
    before = state
    if len(aligned) and aligned.same_tensors and not aligned.sharded:
        local = aligned.column("local_nonfinite")
        known = measured(local).all(axis=0) & (local == 0).all(axis=0)
        afterwards = [measured(aligned.column(name)).all(axis=0) for name in ("reduced_nonfinite", "handed_nonfinite")]
        for at in np.flatnonzero(known & (afterwards[0] | afterwards[1])).tolist():
            state = _reading(state, aligned, at)
    return state, changed(_conclude, before, state)


def _reading(state: State, aligned: AlignedSteps, at: int) -> State:
    step = int(aligned.steps[at])
    reduced = np.flatnonzero(aligned.column("reduced_nonfinite")[:, at] > 0).tolist()
    bad = reduced or _with_bad_buffers(aligned, at)
    if not bad:
        fine = state.fine + 1
        is_over = state.opened.active and fine >= RECOVERED_READINGS
        return replace(state, fine=fine, opened=state.opened.over() if is_over else state.opened)
    bits, handed = aligned.column("reduce_bits")[:, at], aligned.column("reduce_absmax")[:, at]
    found = State(
        opened=state.opened,
        ranks=tuple(aligned.ranks[index] for index in bad)[:MAX_LISTED_RANKS],
        bad=len(bad),
        of=len(aligned.ranks),
        absmax=float(aligned.column("local_absmax")[:, at].max()),
        bits=int(bits.min()) if measured(bits).all() else 0,
        handed=float(handed.max()) if measured(handed).all() else -1.0,
        is_buffer=not reduced,
    )
    if _may_be_mended_by_the_scaler(found, aligned.column("scale")[:, at]):
        return state
    state = replace(state if state.opened.active else found, fine=0)
    return replace(state, opened=state.opened.at(step, step), steps=state.steps + 1)


def _with_bad_buffers(aligned: AlignedSteps, at: int) -> list[int]:
    """Returns the ranks that passed NaN or Inf to all_reduce(), if it came into the gradients of a rank."""
    norms = aligned.column("grad_norm")[:, at]
    if not (measured(norms) & ~np.isfinite(norms)).any():
        return []
    return np.flatnonzero(aligned.column("handed_nonfinite")[:, at] > 0).tolist()


def _may_be_mended_by_the_scaler(state: State, scales: Floats) -> bool:
    """Whether a lower loss scale may keep the gradients within float16, as after the start of a run."""
    return bool((scales > 1).any()) and (state.bits == FLOAT16_BITS or (not state.bits and _may_overflow(state)))


def _may_overflow(state: State) -> bool:
    """Whether the gradients would be too large for a sum in float16."""
    return state.absmax * state.of > FLOAT16_MAX


def _conclude(state: State) -> Finding:
    every = "both ranks" if state.of == 2 else f"all {state.of} ranks"
    where = every if state.bad == state.of else ranks_text(state.ranks, state.bad)
    title = _title(state)
    if state.is_buffer:
        title = f"Buffers that are reduced have NaN or Inf that no gradient has, at step {state.opened.first}"
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=title,
        cause=_of_buffers(state, where)
        if state.is_buffer
        else (
            f"At step {state.opened.first} the gradients that backward computed were finite on {every}, at"
            f" most {state.absmax:.4g}, and after their reduction they contain NaN or Inf on {where}; so it was in"
            f" {wording.count(state.steps, 'step')} that were read.{_why(state)}"
        ),
        fix=_fix(state),
        ranks=state.ranks,
        evidence={
            "ranks": list(state.ranks),
            "of": state.of,
            "steps_read": state.steps,
            "local_absmax": state.absmax,
            "reduce_bits": state.bits or None,
            "reduce_absmax": state.handed if state.handed >= 0 else None,
        },
        **lifecycle_fields(state.opened),
    )


def _title(state: State) -> str:
    step = f"at step {state.opened.first}"
    if _is_cast(state):
        return f"Gradients overflow float16 when they are cast for their reduction {step}"
    if _is_sum(state):
        return f"Gradients overflow {LARGEST[state.bits][0]} when {state.of} ranks sum them {step}"
    return f"Gradients become NaN or Inf in their reduction {step}"


def _of_buffers(state: State, where: str) -> str:
    return (
        f"At step {state.opened.first} the gradients were finite on all {state.of} ranks, at most {state.absmax:.4g},"
        " when the program began to pass buffers to all_reduce; the buffers of"
        f" {where} contained NaN or Inf, and the gradients after the reduction, too; so it was in"
        f" {wording.count(state.steps, 'step')} that were read. A buffer has numbers that are not those of the"
        " gradients: they were not copied into it in time, it was written meanwhile, or a factor made them so."
        f"{_why(state)}"
    )


def _is_sum(state: State) -> bool:
    """Whether finite numbers of the ranks can add up to more than their dtype has."""
    return state.bits in LARGEST and state.handed * state.of > LARGEST[state.bits][1]


def _is_cast(state: State) -> bool:
    return state.bits == FLOAT16_BITS and state.absmax > FLOAT16_MAX


def _why(state: State) -> str:
    if _is_cast(state):
        return f" They are cast to float16 for it, which ends at {FLOAT16_MAX:.0f}."
    if _is_sum(state):
        dtype, largest = LARGEST[state.bits]
        return (
            f" They are summed in {dtype}, which ends at {largest:.5g}: {state.of} numbers of up to {state.handed:.4g}"
            " can exceed that."
        )
    return ""


def _fix(state: State) -> str:
    if state.bits != FLOAT16_BITS and _is_sum(state):
        return (
            f"Unscale the gradients, and divide them by {state.of}, the number of ranks, before they are summed."
            f" Then find what makes single gradients as large as {state.handed:.3g}."
        )
    if _is_cast(state) or _is_sum(state):
        return (
            "Reduce in float32: call dist.all_reduce on the float32 gradient, and remove fp16_compress_hook. Or unscale"
            " the gradients and divide them by the number of ranks before they are cast and summed, or use bfloat16,"
            " which has the range of float32."
        )
    if state.is_buffer:
        return (
            "Wait for each copy of a gradient into its buffer, on every stream that copies, before the buffer is"
            " reduced, and fill the buffers with zeros once. Turn off the overlap of communication and computation for"
            " a trial, DeepSpeed with overlap_comm=false: if the gradients are finite then, a copy is late."
        )
    return (
        "Turn off the overlap of communication and computation for a trial: NCCL with CUDA_LAUNCH_BLOCKING=1, DeepSpeed"
        " with overlap_comm=false, and no custom communication hook. If the gradients are finite then, a buffer is"
        " written while it is being reduced. If not, run the same step without one node after the other, and check its"
        " links with nccl-tests and its GPU memory."
    )


VERDICT = Verdict(
    id="broken-in-reduction",
    severity="page",
    title="Gradients break in their reduction",
    question="Are gradients finite on every rank before their reduction, and NaN or Inf after it?",
    columns=(
        *("local_nonfinite", "reduced_nonfinite", "local_absmax", "reduce_bits", "reduce_absmax", "scale"),
        *("handed_nonfinite", "grad_norm"),
    ),
    events=(),
    state=State,
    explains=(
        *("diverged", "nonfinite-gradient", "nonfinite-weights", "nonfinite-loss", "scale-collapse", "overflow-storm"),
        *("half-reduction", "nonfinite-validation", "lopsided-step", "scheduler-ahead"),
    ),
    ranks=judge,
)
