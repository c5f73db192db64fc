"""The list of verdicts, and the functions that apply them to a stream.

A verdict is pure: (state, view) -> (state, finding | None). Each verdict has its own file in one of FAMILIES, and the
file's VERDICT lists the columns and events that it reads; such a file needs no entry here. The collector, `ammeter
report` and guards run this same code. Some verdicts compare all ranks of a run, and some compare a run with its
baseline.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ammeter.verdicts.framework.finding import Finding, Judged, Verdict, no_op
from ammeter.verdicts.framework.rank_alignment import AlignedSteps
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.wire.columns import View
from ammeter.wire.decodable import decodable

FAMILIES = (
    "loss_scale",
    "call_order",
    "kernels",
    "nonfinite",
    "evaluation",
    "dynamics",
    "low_precision",
    "baseline",
    "checkpoints",
    "processes",
)
"""Packages with verdicts."""

ORDER = (
    "loss-not-scaled",
    "gradients-not-unscaled",
    "update-between-optimizers",
    "gradients-not-reset",
    "mixed-scale-gradients",
    "dtype-switched",
    "unsupported-op",
    "no-gradients",
    "not-as-asked",
    "autocast-scope",
    "half-master-weights",
    "loss-in-half",
    "sensitive-op-in-half",
    "scaler-disabled",
    "pointless-scaler",
    "scaler-not-restored",
    "scaler-rebuilt",
    "broken-in-reduction",
    "ranks-disagree",
    "clip-before-unscale",
    "no-loss-scaling",
    "half-optimizer-state",
    "half-reduction",
    "eps-underflow",
    "masked-labels",
    "rollout-mismatch",
    "diverged",
    "kernel-nan",
    "masked-row-nan",
    "activation-overflow",
    "scale-underflowed",
    "nonfinite-loss",
    "nonfinite-gradient",
    "nonfinite-weights",
    "nonfinite-validation",
    "resume-mismatch",
    "scale-collapse",
    "gradient-spike",
    "sign-flip",
    "overflow-storm",
    "scheduler-ahead",
    "lopsided-step",
    "gradient-underflow",
    "lost-updates",
    "stagnation",
    "fp32-fallback",
    "sdpa-math",
    "misaligned-matmul",
    "cast-churn",
    "activation-casts",
    "memory-not-saved",
    "stale-stack",
    "not-comparable",
    "slower-than-fp32",
    "validation-drift",
    "not-reproducible",
    "checkpoint-exposed",
    "checkpoint-incomplete",
    "checkpoint-stale",
    "run-stalled",
    "run-lost",
    "agent-blind",
)
"""Ids, causes before consequences. A verdict that is not listed comes before the first one that it explains."""


def _family(name: str) -> dict[str, Verdict]:
    """Imports the modules of a family; returns their verdicts by id."""
    package = importlib.import_module(f"{__name__}.{name}")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [vars(importlib.import_module(f"{package.__name__}.{name}")) for name in names]
    verdicts: list[Verdict] = [module["VERDICT"] for module in modules if "VERDICT" in module]
    for verdict in verdicts:
        decodable(verdict.state)
    return {verdict.id: verdict for verdict in verdicts}


def _in_order(verdicts: Mapping[str, Verdict]) -> tuple[Verdict, ...]:
    ordered = [verdicts[name] for name in ORDER]
    for verdict in verdicts.values():
        if verdict.id not in ORDER:
            explained = [place for place, other in enumerate(ordered) if other.id in verdict.explains]
            ordered.insert(min(explained, default=len(ordered)), verdict)
    return tuple(ordered)


BY_FAMILY: dict[str, dict[str, Verdict]] = {name: _family(name) for name in FAMILIES}
"""Family -> id -> verdict."""

ALL: tuple[Verdict, ...] = _in_order(
    {name: verdict for family in BY_FAMILY.values() for name, verdict in family.items()}
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


def judge_ranks(states: Mapping[str, bytes], aligned: AlignedSteps) -> Judged:
    """Applies the verdicts that compare ranks to the next common steps.

    The states are those of the run, as in judge().
    """
    return _apply(states, aligned, ((verdict, verdict.ranks) for verdict in RANK_VERDICTS), {})


def judge_runs(pair: RunComparison) -> Judged:
    """Applies the verdicts that compare a run with its baseline to the available data."""
    return _apply({}, pair, ((verdict, verdict.runs) for verdict in BASELINE_VERDICTS), {})


def _of(view: View) -> Sequence[Verdict]:
    if view.frames or (view.tick and len(view)):
        return STREAM_VERDICTS
    return CLOCK_VERDICTS if view.tick else ROW_VERDICTS


def _apply(
    states: Mapping[str, bytes], data: Any, judges: Iterable[tuple[Verdict, Callable[..., Any]]], decoded: Decoded
) -> Judged:
    after: dict[str, bytes] = dict(states)
    findings: list[Finding] = []
    faults: dict[str, str] = {}
    for verdict, apply in judges:
        packed = states.get(verdict.id)
        if packed == OFF:
            continue
        try:
            known = decoded.get(verdict.id)
            before = known[1] if known is not None and known[0] == packed else _state(verdict, packed)
            state, finding = apply(before, data)
            if packed is None or state is not before:
                packed = msgspec.msgpack.encode(state)
                after[verdict.id] = packed
                decoded[verdict.id] = packed, state
            elif known is None or known[1] is not state:
                decoded[verdict.id] = packed, state
        except Exception as error:  # noqa: BLE001 - a verdict of ours must not cost the stream its data
            after[verdict.id] = OFF
            faults[verdict.id] = f"{type(error).__name__}: {error}"
            continue
        if finding is not None:
            findings.append(finding)
    return Judged(after, findings, faults)


def _state(verdict: Verdict, packed: bytes | None) -> Any:
    return verdict.state() if packed is None else msgspec.msgpack.decode(packed, type=verdict.state)


OFF = b"off"
"""Marks a verdict that raised on this stream."""
