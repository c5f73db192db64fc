from __future__ import annotations

import pytest

from ammeter.counters import readings, stream
from ammeter.wire.columns import View
from tests.agent.training import Recipe, train
from tests.agent.training import stream as journal_of


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    folder = tmp_path_factory.mktemp("readings")
    outcome = train(Recipe(steps=30), watched=True, dir=folder)
    rows, frames = journal_of(outcome.run, folder)
    return View(rows.schema, rows.steps, rows.times, rows.values, [(0, frame) for frame in frames])


def test_readings_and_censuses_of_a_real_run_are_counted(view: View) -> None:
    counted = readings.advance({}, view)
    assert 30 == counted["scale"]
    assert 0 < counted["grad_norm"] <= 30
    assert 0 < counted["grad_absmax"] <= counted["grad_norm"]
    assert counted["update_ratio"] >= 1
    assert counted[readings.CENSUS] >= 1
    assert 0 == counted["half_tensors"]


@pytest.mark.parametrize("size", [1, 7, 29])
def test_the_division_of_a_stream_does_not_matter(view: View, size: int) -> None:
    counted = readings.advance({}, View(view.schema, view.steps[:0], view.times[:0], view.values[:, :0], view.frames))
    for begin in range(0, len(view), size):
        counted = readings.advance(counted, view.rows(begin, begin + size))
    assert readings.advance({}, view) == counted


def test_a_stream_that_began_before_the_counter_existed_stays_without_it(view: View) -> None:
    counters = stream.advance({"steps": 10, "applied": 10}, view)
    assert readings.of(counters) is None
    assert readings.of(stream.advance({}, view)) is not None


def test_reached_verdicts_are_kept_once() -> None:
    counters = stream.add_reached({"steps": 1}, ["sign-flip"])
    assert {"steps": 1, "reached": ["sign-flip"]} == counters
    assert counters is stream.add_reached(counters, ["sign-flip"])
