"""The list of verdicts, and the functions that apply them to a stream.

A verdict is pure: (state, view) -> (state, finding | None). Each verdict has its own file, and the file's VERDICT lists
the columns and events that it reads. The collector, `ammeter report` and guards run this same code. Some verdicts
compare all ranks of a run, and some compare a run with its baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ammeter.verdicts.baseline.not_comparable import VERDICT as NOT_COMPARABLE
from ammeter.verdicts.baseline.not_reproducible import VERDICT as NOT_REPRODUCIBLE
from ammeter.verdicts.baseline.slower_than_fp32 import VERDICT as SLOWER_THAN_FP32
from ammeter.verdicts.baseline.validation_drift import VERDICT as VALIDATION_DRIFT
from ammeter.verdicts.call_order.clip_before_unscale import VERDICT as CLIP_BEFORE_UNSCALE
from ammeter.verdicts.call_order.gradients_not_reset import VERDICT as GRADIENTS_NOT_RESET
from ammeter.verdicts.call_order.gradients_not_unscaled import VERDICT as GRADIENTS_NOT_UNSCALED
from ammeter.verdicts.call_order.lopsided_step import VERDICT as LOPSIDED_STEP
from ammeter.verdicts.call_order.loss_not_scaled import VERDICT as LOSS_NOT_SCALED
from ammeter.verdicts.call_order.mixed_scale_gradients import VERDICT as MIXED_SCALE_GRADIENTS
from ammeter.verdicts.call_order.scheduler_ahead import VERDICT as SCHEDULER_AHEAD
from ammeter.verdicts.call_order.unsupported_op import VERDICT as UNSUPPORTED_OP
from ammeter.verdicts.call_order.update_between_optimizers import VERDICT as UPDATE_BETWEEN_OPTIMIZERS
from ammeter.verdicts.checkpoints.checkpoint_exposed import VERDICT as CHECKPOINT_EXPOSED
from ammeter.verdicts.checkpoints.checkpoint_incomplete import VERDICT as CHECKPOINT_INCOMPLETE
from ammeter.verdicts.checkpoints.checkpoint_stale import VERDICT as CHECKPOINT_STALE
from ammeter.verdicts.checkpoints.resume_mismatch import VERDICT as RESUME_MISMATCH
from ammeter.verdicts.dynamics.gradient_spike import VERDICT as GRADIENT_SPIKE
from ammeter.verdicts.dynamics.half_master_weights import VERDICT as HALF_MASTER_WEIGHTS
from ammeter.verdicts.dynamics.half_optimizer_state import VERDICT as HALF_OPTIMIZER_STATE
from ammeter.verdicts.dynamics.lost_updates import VERDICT as LOST_UPDATES
from ammeter.verdicts.dynamics.sign_flip import VERDICT as SIGN_FLIP
from ammeter.verdicts.dynamics.stagnation import VERDICT as STAGNATION
from ammeter.verdicts.framework.finding import Finding, Judged, Verdict, no_op
from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.loss_scale.gradient_underflow import VERDICT as GRADIENT_UNDERFLOW
from ammeter.verdicts.loss_scale.no_loss_scaling import VERDICT as NO_LOSS_SCALING
from ammeter.verdicts.loss_scale.overflow_storm import VERDICT as OVERFLOW_STORM
from ammeter.verdicts.loss_scale.pointless_scaler import VERDICT as POINTLESS_SCALER
from ammeter.verdicts.loss_scale.scale_collapse import VERDICT as SCALE_COLLAPSE
from ammeter.verdicts.loss_scale.scale_underflowed import VERDICT as SCALE_UNDERFLOWED
from ammeter.verdicts.loss_scale.scaler_disabled import VERDICT as SCALER_DISABLED
from ammeter.verdicts.loss_scale.scaler_not_restored import VERDICT as SCALER_NOT_RESTORED
from ammeter.verdicts.loss_scale.scaler_rebuilt import VERDICT as SCALER_REBUILT
from ammeter.verdicts.low_precision.cast_churn import VERDICT as CAST_CHURN
from ammeter.verdicts.low_precision.fp32_fallback import VERDICT as FP32_FALLBACK
from ammeter.verdicts.low_precision.memory_not_saved import VERDICT as MEMORY_NOT_SAVED
from ammeter.verdicts.low_precision.misaligned_matmul import VERDICT as MISALIGNED_MATMUL
from ammeter.verdicts.low_precision.sdpa_math import VERDICT as SDPA_MATH
from ammeter.verdicts.low_precision.stale_stack import VERDICT as STALE_STACK
from ammeter.verdicts.nonfinite.activation_overflow import VERDICT as ACTIVATION_OVERFLOW
from ammeter.verdicts.nonfinite.eps_underflow import VERDICT as EPS_UNDERFLOW
from ammeter.verdicts.nonfinite.masked_row_nan import VERDICT as MASKED_ROW_NAN
from ammeter.verdicts.nonfinite.nonfinite_gradient import VERDICT as NONFINITE_GRADIENT
from ammeter.verdicts.nonfinite.nonfinite_loss import VERDICT as NONFINITE_LOSS
from ammeter.verdicts.nonfinite.nonfinite_weights import VERDICT as NONFINITE_WEIGHTS
from ammeter.verdicts.processes.agent_blind import VERDICT as AGENT_BLIND
from ammeter.verdicts.processes.ranks_disagree import VERDICT as RANKS_DISAGREE
from ammeter.verdicts.processes.run_lost import VERDICT as RUN_LOST
from ammeter.verdicts.processes.run_stalled import VERDICT as RUN_STALLED
from ammeter.wire.columns import View

ALL: tuple[Verdict, ...] = (
    LOSS_NOT_SCALED,
    GRADIENTS_NOT_UNSCALED,
    UPDATE_BETWEEN_OPTIMIZERS,
    GRADIENTS_NOT_RESET,
    MIXED_SCALE_GRADIENTS,
    UNSUPPORTED_OP,
    HALF_MASTER_WEIGHTS,
    SCALER_DISABLED,
    POINTLESS_SCALER,
    SCALER_NOT_RESTORED,
    SCALER_REBUILT,
    RANKS_DISAGREE,
    CLIP_BEFORE_UNSCALE,
    NO_LOSS_SCALING,
    HALF_OPTIMIZER_STATE,
    EPS_UNDERFLOW,
    MASKED_ROW_NAN,
    ACTIVATION_OVERFLOW,
    SCALE_UNDERFLOWED,
    NONFINITE_LOSS,
    NONFINITE_GRADIENT,
    NONFINITE_WEIGHTS,
    RESUME_MISMATCH,
    SCALE_COLLAPSE,
    GRADIENT_SPIKE,
    SIGN_FLIP,
    OVERFLOW_STORM,
    SCHEDULER_AHEAD,
    LOPSIDED_STEP,
    GRADIENT_UNDERFLOW,
    LOST_UPDATES,
    STAGNATION,
    FP32_FALLBACK,
    SDPA_MATH,
    MISALIGNED_MATMUL,
    CAST_CHURN,
    MEMORY_NOT_SAVED,
    STALE_STACK,
    NOT_COMPARABLE,
    SLOWER_THAN_FP32,
    VALIDATION_DRIFT,
    NOT_REPRODUCIBLE,
    CHECKPOINT_EXPOSED,
    CHECKPOINT_INCOMPLETE,
    CHECKPOINT_STALE,
    RUN_STALLED,
    RUN_LOST,
    AGENT_BLIND,
)
"""Every verdict, causes before consequences."""

BY_ID: dict[str, Verdict] = {verdict.id: verdict for verdict in ALL}

STREAM_VERDICTS = tuple(verdict for verdict in ALL if verdict.judge is not no_op)
ROW_VERDICTS = tuple(verdict for verdict in STREAM_VERDICTS if verdict.rows)
CLOCK_VERDICTS = tuple(verdict for verdict in STREAM_VERDICTS if verdict.clock)
RANK_VERDICTS = tuple(verdict for verdict in ALL if verdict.ranks is not no_op)
BASELINE_VERDICTS = tuple(verdict for verdict in ALL if verdict.runs is not no_op)
"""Groups of verdicts by their input. They are applied to one stream; to views with rows only; to ticks without data; to
all ranks of a run together; and to a run with its baseline."""


Decoded = dict[str, tuple[bytes, Any]]
"""Verdict -> (packed state, unpacked state). A cache of one stream that saves repeated unpacking."""


def judge(states: Mapping[str, bytes], view: View, decoded: Decoded | None = None) -> Judged:
    """Applies the verdicts that a view of a stream concerns.

    A verdict that raises is switched off for the stream and listed in `faults`; the others continue.

    Args:
        states: The states that the last call returned for this stream; {} at its beginning.
        view: The next part of the stream.
        decoded: The cache from the last call; this call updates it.
    """
    judges = ((verdict, verdict.judge) for verdict in _of(view))
    return _apply(states, view, judges, {} if decoded is None else decoded)


def judge_ranks(states: Mapping[str, bytes], seen: AlignedSteps) -> Judged:
    """Applies the verdicts that compare ranks to the next common steps.

    The states are those of the run, as in judge().
    """
    return _apply(states, seen, ((verdict, verdict.ranks) for verdict in RANK_VERDICTS), {})


def judge_runs(pair: RunComparison) -> Judged:
    """Applies the verdicts that compare a run with its baseline to the available data."""
    return _apply({}, pair, ((verdict, verdict.runs) for verdict in BASELINE_VERDICTS), {})


def _of(view: View) -> Sequence[Verdict]:
    if view.frames or (view.tick and len(view)):
        return STREAM_VERDICTS
    return CLOCK_VERDICTS if view.tick else ROW_VERDICTS


def _apply(
    states: Mapping[str, bytes], seen: Any, judges: Iterable[tuple[Verdict, Callable[..., Any]]], decoded: Decoded
) -> Judged:
    after: dict[str, bytes] = dict(states)
    findings: list[Finding] = []
    faults: dict[str, str] = {}
    for verdict, apply in judges:
        packed = states.get(verdict.id)
        if packed == OFF:
            continue
        try:
            before = _state(verdict, packed, decoded.get(verdict.id))
            state, finding = apply(before, seen)
            if packed is None or state is not before:
                packed = msgspec.msgpack.encode(state)
            after[verdict.id] = packed
            decoded[verdict.id] = packed, state
        except Exception as error:  # noqa: BLE001 - a verdict of ours must not cost the stream its data
            after[verdict.id] = OFF
            faults[verdict.id] = f"{type(error).__name__}: {error}"
            continue
        if finding is not None:
            findings.append(finding)
    return Judged(after, findings, faults)


def _state(verdict: Verdict, packed: bytes | None, known: tuple[bytes, Any] | None) -> Any:
    if packed is None:
        return verdict.state()
    if known is not None and known[0] == packed:
        return known[1]
    return msgspec.msgpack.decode(packed, type=verdict.state)


OFF = b"off"
"""Marks a verdict that raised on this stream."""
