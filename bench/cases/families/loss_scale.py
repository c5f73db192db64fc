"""Threads about the loss scale: its value, its growth, its state."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "pytorch/pytorch#99640",
        "loss_scale/pytorch_99640.py",
        "the scale falls below 1 until its inverse is Inf, and good gradients turn NaN",
        ("scale-collapse", "scale-underflowed", "nonfinite-gradient"),
        (r"NaN", r"scale"),
    ),
)
