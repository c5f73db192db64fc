"""Curves with few points keep the extremes, the gaps and what is not finite."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ammeter.report.diagnosis import diagnose
from ammeter.report.notebook import svg
from ammeter.report.notebook.curves import SLOTS, Curve, curves_of
from ammeter.wire.frames import Event
from tests.agent.report.reporting import RUN, written
from tests.agent.stream_builder import Stream, warm


def curves(folder: Path) -> dict[str, Curve]:
    return {curve.title: curve for curve in curves_of(diagnose(folder / RUN), folder / RUN)}


def test_a_long_run_keeps_its_extremes_in_few_points(tmp_path: Path) -> None:
    stream = Stream()
    for step in range(3000):
        stream.good(65536.0, loss=50.0 if step == 1717 else -3.0 if step == 1718 else 1.0)
    written(stream, tmp_path)
    loss = curves(tmp_path)["loss"]
    slot = 1717 * SLOTS // 3000
    assert (50.0, -3.0) == (loss.high[slot], loss.low[slot])
    assert SLOTS - 1 == int(np.sum((loss.high == 1.0) & (loss.low == 1.0)))


def test_values_that_are_not_finite_are_marks_and_no_points(tmp_path: Path) -> None:
    stream = Stream()
    for value in (1.0, math.nan, math.inf, 2.0):
        stream.good(loss=value)
    written(stream, tmp_path)
    loss = curves(tmp_path)["loss"]
    assert (2, 2, 2.0) == (loss.count, int(loss.bad.sum()), loss.newest)
    (panel,) = svg.panels_of([loss])
    assert (2, 2, "2 at last, 2 not finite (red)") == (len(panel.dots), len(panel.marks), panel.note)


def test_a_late_value_stands_at_its_step_and_is_not_the_newest(tmp_path: Path) -> None:
    stream = warm(20).step(val_loss=4.0, loss=1.0, applied=1)
    stream.frames.append(Event("values.logged", 3, stream.now, {"val_loss": 9.0}))
    written(stream, tmp_path)
    found = curves(tmp_path)["validation loss"]
    assert (9.0, 4.0, 4.0) == (found.high[3 * SLOTS // 21], found.high[20 * SLOTS // 21], found.newest)


def test_the_newest_attempt_of_the_lowest_rank_is_drawn(tmp_path: Path) -> None:
    for rank, started, loss in ((0, 1, 5.0), (0, 99 * 10**9, 7.0), (1, 199 * 10**9, 8.0)):
        stream = Stream(world_size=2)
        stream.now = started
        written(stream.good(loss=loss).bye(), tmp_path, rank=rank, started=started)
    assert 7.0 == curves(tmp_path)["loss"].newest


def test_a_loss_that_explodes_is_drawn_on_a_logarithmic_axis(tmp_path: Path) -> None:
    stream = Stream()
    for power in range(20):
        stream.good(loss=10.0**power)
    written(stream, tmp_path)
    (panel,) = svg.panels_of([curves(tmp_path)["loss"]])
    assert "loss (logarithmic)" == panel.title
    heights = [y for _, y in panel.dots]
    assert heights == sorted(heights, reverse=True)
    assert max(heights) - min(heights) == svg.PLOT_HEIGHT


def test_a_constant_curve_is_in_the_middle_and_one_value_is_a_dot(tmp_path: Path) -> None:
    written(Stream().good(loss=3.0), tmp_path)
    (panel,) = svg.panels_of([curves(tmp_path)["loss"]])
    assert ("", "3", "3", 1, svg.PLOT_HEIGHT / 2) == (
        panel.points,
        panel.high,
        panel.low,
        len(panel.dots),
        panel.dots[0][1],
    )
