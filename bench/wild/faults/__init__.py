"""Faults of the generated programs, by family. Each is declared with the verdicts that name it."""

from __future__ import annotations

from bench.wild.faults import call_order, casts, evaluation, loss_scale, low_precision, nonfinite, recomputed, training
from bench.wild.faults.registry import Fault, Spelling

FAULTS: dict[str, Fault] = {
    **call_order.FAULTS,
    **loss_scale.FAULTS,
    **nonfinite.FAULTS,
    **evaluation.FAULTS,
    **low_precision.FAULTS,
    **casts.FAULTS,
    **recomputed.FAULTS,
    **training.FAULTS,
}

__all__ = ["FAULTS", "Fault", "Spelling"]
