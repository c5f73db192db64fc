"""A finding states the learning rate where its symptom began, and a change of it in the steps before."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings, judged

Schedule = Callable[[int], float]


def steady(step: int) -> float:
    return 1e-4


def raised(step: int) -> float:
    """Ten times as high from step 150 on; the loss explodes at 160."""
    return 1e-3 if step >= 150 else 1e-4


def exploding(rate: Schedule | None) -> Stream:
    stream = Stream()
    for step in range(220):
        loss = 2.0 if step < 160 else min(1e12, 2.0 * 4.0 ** (step - 159))
        rates = {} if rate is None else {"optimizer_lr": rate(step)}
        stream.good(loss=loss, **rates)
    return stream


def storm(rate: Schedule) -> Stream:
    stream, scale = Stream(), 65536.0
    for step in range(120):
        stream.good(scale, optimizer_lr=rate(step))
    for step in range(120, 200):
        overflows = step % 4 == 0
        (stream.bad if overflows else stream.good)(scale, optimizer_lr=rate(step))
        scale = scale / 2 if overflows else scale * 2 if step % 4 == 2 else scale
    return stream


def diverged(rate: Schedule | None) -> Finding:
    return findings(exploding(rate))["diverged"]


def test_a_rate_that_rose_before_the_symptom_is_stated_with_both_values() -> None:
    found = diverged(raised)
    assert "The learning rate rose from 0.0001 to 0.001 at step 150." in found.cause
    assert found.evidence["learning_rate"] == pytest.approx(1e-3)
    assert found.evidence["learning_rate_before"] == pytest.approx(1e-4)
    assert 150 == found.evidence["learning_rate_step"]


def test_a_rate_that_fell_is_stated_as_well() -> None:
    found = diverged(lambda step: 1e-2 if step < 100 else 1e-3)
    assert "The learning rate fell from 0.01 to 0.001 at step 100." in found.cause


def test_a_rate_that_stayed_is_stated_as_that() -> None:
    found = diverged(steady)
    text = f"The learning rate stayed near 0.0001 in the readings of the 100 steps before step {found.first_step}."
    assert text in found.cause
    assert "learning_rate_before" not in found.evidence


def test_a_change_after_the_symptom_or_long_before_it_is_not_stated() -> None:
    for rate in (lambda step: 1e-5 if step >= 170 else 1e-4, lambda step: 1e-5 if step < 20 else 1e-4):
        found = diverged(rate)
        assert "stayed near 0.0001" in found.cause
        assert found.evidence["learning_rate"] == pytest.approx(1e-4)


def test_a_schedule_that_moves_a_little_in_each_step_is_a_change_if_it_adds_up() -> None:
    found = diverged(lambda step: 1e-5 * (step + 1))
    rose = f"The learning rate rose from {found.evidence['learning_rate_before']:.3g} at step 60 to "
    assert f"{rose}{found.evidence['learning_rate']:.3g} at step {found.evidence['learning_rate_step']}." in found.cause
    assert "stayed near" in diverged(lambda step: 1e-4 * (1 - step / 4000)).cause
    cosine = diverged(lambda step: 1e-4 * (1 + math.cos(math.pi * step / 160)) / 2 + 1e-8)
    assert "The learning rate fell from" in cosine.cause


def test_a_stream_without_learning_rates_says_nothing_of_them() -> None:
    found = diverged(None)
    assert "learning rate stayed" not in found.cause
    assert "learning rate rose" not in found.cause
    assert not [name for name in found.evidence if name.startswith("learning_rate")]


def test_a_storm_and_a_spike_state_it_too() -> None:
    found = findings(storm(lambda step: 1e-3 if step >= 110 else 1e-4))
    assert "The learning rate rose from 0.0001 to 0.001 at step" in found["overflow-storm"].cause
    stream = Stream()
    for step in range(140):
        stream.good(norm=300.0 if step >= 120 else 1.0 + 0.1 * (step % 3), optimizer_lr=raised(step + 35))
    assert "The learning rate rose from 0.0001 to 0.001 at step 115." in findings(stream)["gradient-spike"].cause


def test_a_gradual_change_does_not_explain_a_storm_or_a_spike() -> None:
    found = findings(storm(lambda step: 1e-5 * (step + 1)))["overflow-storm"]
    assert "learning rate" not in found.cause
    assert found.evidence["learning_rate"] > 2 * found.evidence["learning_rate_before"]


@pytest.mark.parametrize("rate", [steady, raised, lambda step: 1e-6 * 1.2 ** (step % 40)])
def test_what_is_stated_does_not_depend_on_how_the_stream_was_cut(rate: Schedule) -> None:
    for stream in (exploding(rate), storm(rate)):
        expected = judged(stream)[1]
        for cuts in (range(0, 300, 7), range(300), (150, 161, 162)):
            found = judged(stream, cuts)[1]
            assert {name: finding.cause for name, finding in expected.items()} == {
                name: finding.cause for name, finding in found.items()
            }


def test_the_history_stays_small() -> None:
    stream = Stream()
    for step in range(2000):
        stream.good(optimizer_lr=1e-6 * 1.3 ** (step % 50))
    states = judged(stream)[0]
    assert all(len(states[name]) <= 2048 for name in ("diverged", "overflow-storm", "scale-collapse"))
