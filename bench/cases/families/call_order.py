"""Threads about calls in the wrong order: scale, unscale_, clip, step, update, zero_grad."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "pytorch/pytorch#74739",
        "call_order/pytorch_74739.py",
        "ValueError: Attempting to unscale FP16 gradients",
        ("half-master-weights",),
        (r"float32", r"autocast"),
    ),
    Case(
        "pytorch/examples#1196",
        "call_order/examples_1196.py",
        "gradients are clipped before unscale_()",
        ("clip-before-unscale",),
        (r"unscale_", r"before"),
    ),
)
