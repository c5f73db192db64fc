"""The streams that the benchmark sends."""

from __future__ import annotations

import time

import numpy as np

from bench.collector.synthetic_run import FULL_SCHEMA, new_run


def test_the_ranks_have_1214_columns_that_are_measured_at_every_step() -> None:
    assert 1214 == FULL_SCHEMA.width
    ranks = new_run(2, 50, time.time_ns())
    assert all(np.isfinite(rank.view.values).all() for rank in ranks)
    assert not np.array_equal(ranks[0].view.values, ranks[1].view.values)
