"""Trainings and a plan of the smallest size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.agent import plan
from bench.agent.comparison import Outcome, Sampling, Skipped, compare
from bench.agent.peers import Peer
from bench.agent.training import TrainingSpec
from bench.common.trainer import Shape

SHAPE = Shape(vocabulary=32, context=8, layers=1, heads=2, width=8)
TINY = {precision: TrainingSpec(precision, SHAPE, batch=2, threads=1) for precision in ("bf16", "fp16", "fp32")}
PLAN = replace(
    plan.QUICK,
    long=(TINY["bf16"], TINY["fp16"]),
    others=(TINY["bf16"],),
    short=(TINY["fp32"],),
    short_steps=2,
    minutes=30.0,  # a slow machine measures the same number of pairs
)


def compared(kinds: Sequence[type[Peer]], spec: TrainingSpec = TINY["bf16"]) -> list[Outcome | Skipped]:
    return compare(spec, kinds, Sampling(pairs=4, steps=3))
