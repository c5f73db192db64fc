"""half-reduction: the gradients of the ranks are summed in 16 bits.

The average of float32 gradients of several batches has 24 significant bits. If it has 8 or 11 on every rank, although
the batches differ, it was rounded to bfloat16 or float16 in the reduction or around it. The gradients of a sharded
model are not equal on the ranks; there the calls of torch.distributed show it, and only sums of many terms count.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.verdicts.processes.replica_weights import MAX_LISTED_RANKS, are_equal
from ammeter.wire.columns import Floats, View, measured
from ammeter.wire.frames import Event

MIN_READINGS = 4
"""Readings in a row with rounded gradients. They are two pairs of steps, several steps apart."""

FORMATS = {8: "bfloat16", 11: "float16"}
"""Significant bits of a 16-bit dtype, and its name."""


MIN_TERMS = 129
"""Terms of a sum in 16 bits from which a sharded model is judged. The last bit of bfloat16 is a 128th of its number,
so that a term of a longer sum is less than that. Runs of 96 ranks were stable, of 384 not (pytorch/pytorch#106395)."""

HALF = ("bfloat16", "float16")


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    readings: int = 0
    since: int = -1
    """`readings`: readings in a row with rounded gradients, the first of them at `since`."""
    bits: int = 0
    ranks: tuple[int, ...] = ()
    """The first MAX_LISTED_RANKS of `ranks_count` ranks."""
    ranks_count: int = 0
    losses: tuple[float, float] = (0.0, 0.0)
    """The lowest and the highest loss of the ranks at `since`: their batches differ."""
    is_handed: bool = False
    """Whether the program passes tensors of this dtype to all_reduce(), in the last reading."""
    op: str = ""
    dtype: str = ""
    """For a sharded model: the call that reduces its gradients over `ranks_count` ranks, and their dtype."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    """Judges the calls of one rank with a sharded model."""
    before = state
    for part in view.parts("collectives.census"):
        if isinstance(part, Event) and part.data.get("sharded") and not state.opened.active:
            state = _counted(state, part)
    return state, changed(_conclude, before, state)


def _counted(state: State, event: Event) -> State:
    for call in event.data["calls"]:
        is_sum = call["op"].startswith(("reduce", "all_reduce")) and call["phase"] == "backward"
        if is_sum and call["dtype"] in HALF and call["ranks"] >= MIN_TERMS:
            opened = state.opened.at(event.step, event.step)
            return State(opened, ranks_count=int(call["ranks"]), op=str(call["op"])[:40], dtype=call["dtype"])
    return state


def judge_ranks(state: State, aligned: AlignedSteps) -> tuple[State, Finding | None]:
    before = state
    if len(aligned) and aligned.same_tensors and not aligned.sharded:
        bits, checksums, losses, handed = (aligned.column(name) for name in VERDICT.columns)
        known = measured(bits).all(axis=0) & measured(checksums).all(axis=0) & np.isfinite(losses).all(axis=0)
        for at in np.flatnonzero(known).tolist():
            if are_equal(checksums[:, at].tolist()):
                state = _reading(state, aligned.ranks, int(aligned.steps[at]), bits[:, at], losses[:, at])
                state = replace(state, is_handed=bool((handed[:, at] == state.bits).all()))
    return state, changed(_conclude, before, state)


def _reading(state: State, ranks: tuple[int, ...], step: int, bits: Floats, losses: Floats) -> State:
    """Counts a reading of replicas. Equal batches prove nothing: their average has the bits of each summand."""
    low, high = float(losses.min()), float(losses.max())
    if low == high:
        return state
    if int(bits.max()) not in FORMATS:
        return replace(state, readings=0, opened=state.opened.over())
    if not state.readings:
        listed = ranks[:MAX_LISTED_RANKS]
        state = replace(
            state, since=step, bits=int(bits.max()), ranks=listed, ranks_count=len(ranks), losses=(low, high)
        )
    state = replace(state, readings=state.readings + 1)
    return replace(state, opened=state.opened.at(state.since, step)) if state.readings >= MIN_READINGS else state


def _conclude(state: State) -> Finding:
    return _of_sharded(state) if state.op else _of_replicas(state)


def _of_sharded(state: State) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Gradients of {state.ranks_count} ranks are summed in {state.dtype}",
        cause=f"At step {state.opened.first}, backward() passed {state.dtype} tensors to {state.op} over"
        f" {state.ranks_count} ranks: each sum has {state.ranks_count} terms. The rounding error of a sum grows with"
        " the number of its terms.",
        fix="Reduce in float32: MixedPrecisionPolicy(reduce_dtype=torch.float32) for fully_shard, or"
        " MixedPrecision(reduce_dtype=torch.float32) for FullyShardedDataParallel. Parameters may remain in 16 bits.",
        evidence={"dtype": state.dtype, "terms": state.ranks_count, "op": state.op},
        **lifecycle_fields(state.opened),
    )


def _of_replicas(state: State) -> Finding:
    dtype = FORMATS[state.bits]
    low, high = (f"{loss:.6g}" for loss in state.losses)
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Gradients are reduced in {dtype}",
        cause=_handed(state)
        or (
            f"The {state.ranks_count} ranks round their gradients to {dtype} in the reduction or around it: the"
            f" averaged float32 gradients have {state.bits} significant bits instead of 24 {state.opened.since},"
            f" although the batches of the ranks differ (losses of {low} to {high} at step {state.since})."
            " The rounding error grows with the number of ranks."
        ),
        fix=f"{_first_fix(state, dtype)} If the network between the ranks is too slow for that, keep it only if the"
        " validation loss is as good as with a float32 reduction.",
        ranks=state.ranks,
        evidence={
            "significant_bits": state.bits,
            "dtype": dtype,
            "of": state.ranks_count,
            "readings": state.readings,
            "losses": list(state.losses),
            "losses_at_step": state.since,
            **({"terms": state.ranks_count, "reduce_dtype": dtype} if state.is_handed else {}),
        },
        **lifecycle_fields(state.opened),
    )


def _handed(state: State) -> str:
    if not state.is_handed:
        return ""
    return (
        f"The {state.ranks_count} ranks pass their gradients to all_reduce as {FORMATS[state.bits]}: each sum has"
        f" {state.ranks_count} terms, and the averaged gradients have {state.bits} significant bits instead of 24"
        f" {state.opened.since}. The rounding error grows with the number of ranks."
    )


def _first_fix(state: State, dtype: str) -> str:
    hook = "bf16_compress_hook" if dtype == "bfloat16" else "fp16_compress_hook"
    if state.is_handed:
        return f"Pass the float32 gradient to dist.all_reduce: remove the cast to {dtype} before it, or {hook}."
    return (
        f"Reduce in float32: remove {hook} from DistributedDataParallel, or the cast to {dtype} around dist.all_reduce."
    )


VERDICT = Verdict(
    id="half-reduction",
    severity="ticket",
    title="Reduction in half precision",
    question="Are the gradients of the ranks rounded to bfloat16 or float16 in their reduction?",
    columns=("grad_bits", "weights_checksum", "loss", "reduce_bits"),
    events=("collectives.census",),
    state=State,
    rows=False,
    judge=judge,
    ranks=judge_ranks,
)
