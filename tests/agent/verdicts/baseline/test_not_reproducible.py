"""not-reproducible names the first step at which two runs with one seed and one set-up have other losses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.agent.pairs import CONFIG, check_words, course, judged

LAST_DIGIT = float(np.nextafter(np.float32(2.0 + 1 / 31), np.float32(3)))


def test_the_first_loss_that_differs_in_its_last_bit_is_named() -> None:
    twin = course(row=lambda step: {"loss": LAST_DIGIT} if step == 30 else {})
    finding = judged(twin, course(name="monday"))["not-reproducible"]
    check_words(finding)
    assert ("ticket", 30, 30) == (finding.severity, finding.first_step, finding.opened_step)
    assert 'has the seed (0) and the settings of the baseline (run "monday")' in finding.cause
    assert "at step 30 its loss is 2.03225827 instead of 2.03225803" in finding.cause
    assert "all earlier losses of both runs are equal to the bit" in finding.cause
    assert "torch.use_deterministic_algorithms(True)" in finding.fix


def test_runs_that_differ_from_the_first_step_on_are_sent_to_their_generators() -> None:
    finding = judged(course(row=lambda step: {"loss": 1.5}), course())["not-reproducible"]
    assert (0, 9) == (finding.first_step, finding.opened_step)
    assert "the losses differ from the first step on" in finding.cause
    assert "Seed every random generator before you build the model and the data" in finding.fix


def test_a_twin_is_silent_and_its_nans_are_equal() -> None:
    assert {} == judged(course(), course())
    broken = course(row=lambda step: {"loss": math.nan})
    assert {} == judged(broken, broken)


def test_nine_losses_are_not_enough() -> None:
    assert {} == judged(course(9, row=lambda step: {"loss": 1.5}), course())
    assert ["not-reproducible"] == list(judged(course(10, row=lambda step: {"loss": 1.5}), course()))


@pytest.mark.parametrize("config", [{**CONFIG, "seed": 1}, {**CONFIG, "lr": 0.5}, {"lr": 0.001, "batch": 8}])
def test_another_seed_or_setting_or_no_seed_says_nothing(config: dict[str, object]) -> None:
    found = judged(course(config=config, row=lambda step: {"loss": 1.5}), course())
    assert "not-reproducible" not in found


def test_another_precision_has_other_numbers() -> None:
    assert {} == judged(course(precision="bfloat16", row=lambda step: {"loss": 1.5}), course())


def test_what_run_log_said_after_the_row_counts() -> None:
    from ammeter.verdicts.framework.run_history import LifeReader
    from tests.agent.stream_builder import Stream
    from tests.agent.stream_judgement import views

    def read(late: bool) -> np.typing.NDArray[np.float32]:
        stream, reading = Stream(), LifeReader()
        stream.step(loss=2.0 if late else 2.25)
        if late:
            stream.event("values.logged", loss=2.25, other="x")
        for view in views(stream.step(loss=1.0).frames):
            reading.add(view)
        return reading.history(over=True).curve("loss").values

    assert [2.25, 1.0] == read(late=True).tolist() == read(late=False).tolist()
