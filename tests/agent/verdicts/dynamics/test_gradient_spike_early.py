"""gradient-spike in a run's first steps, whose norms rise or fall: the loss of the same step is a second witness."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.agent import stream_judgement
from tests.agent.stream_builder import Stream
from tests.agent.verdicts.dynamics.test_gradient_spike import judged, noisy

Numbers = npt.NDArray[Any]

SPIKE, SEEDS = 32, range(24)
"""The reading with the spike."""


def climbing(seed: int, count: int = 80) -> tuple[Numbers, Numbers]:
    """Norms that rise sixfold and scatter, and losses that fall, as in the first steps of a run with Adam."""
    dice = np.random.default_rng(seed)
    rise = np.exp(1.8 * np.minimum(1, np.arange(count) / 40))
    return rise * noisy(dice, count, 0.35), 1.3 + np.exp(-np.arange(count) / 20) + 0.1 * dice.normal(size=count)


def wide(count: int = 80) -> tuple[Numbers, Numbers]:
    """Norms with a robust deviation of 0.45 in their logarithms: twenty of them are a ratio of 7000."""
    return np.where(np.arange(count) % 2, 1.0, 1.8), np.full(count, 1.3)


def test_one_norm_far_above_norms_that_scatter_is_reported_with_a_loss_far_above_all() -> None:
    norms, losses = wide()
    norms[SPIKE], losses[SPIKE] = 1400.0, 4000.0
    finding = judged(norms, losses)
    assert finding
    assert (SPIKE, SPIKE, 1) == (finding.first_step, finding.opened_step, finding.times)
    assert "The loss was 4000 at that step and 1.3 before." in finding.cause
    assert judged(norms[:SPIKE], losses[:SPIKE]) is None


@pytest.mark.parametrize("loss", [1.3, 20.0, 99.0, -4000.0, np.inf, np.nan])
def test_without_a_loss_far_above_all_it_is_silent(loss: float) -> None:
    norms, losses = wide()
    norms[SPIKE], losses[SPIKE] = 1400.0, loss
    assert judged(norms, losses) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_jumps_beside_a_usual_norm_is_silent(seed: int) -> None:
    norms, losses = climbing(seed)
    assert judged(norms, losses) is None
    losses[SPIKE] = 4000.0
    norms[SPIKE] = 20 * norms[:SPIKE].max()
    assert judged(norms, losses) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_high_losses_that_the_run_had_before_are_no_second_witness(seed: int) -> None:
    """The losses of rewards are near zero most of the time, and their norms jump with each."""
    norms, losses = climbing(seed)
    rewarded = np.arange(80) % 11 == 10
    losses[rewarded] = 300.0
    norms[rewarded] *= 40
    norms[65] *= 12
    assert judged(norms, losses) is None


def test_first_readings_are_silent_whatever_their_loss_is() -> None:
    norms, losses = wide()
    norms[12], losses[12] = 5000.0, 4000.0
    assert judged(norms, losses) is None


@pytest.mark.parametrize("rows", [1, 3, 31, 32, 33])
def test_it_is_the_same_for_every_division_of_the_stream(rows: int) -> None:
    norms, losses = wide()
    norms[SPIKE], losses[SPIKE] = 1400.0, 4000.0
    stream = Stream()
    for norm, loss in zip(norms.tolist(), losses.tolist(), strict=True):
        stream.good(norm=norm, loss=loss)
    whole = stream_judgement.judged(stream)
    assert "gradient-spike" in whole[1]
    assert whole == stream_judgement.judged(stream, cuts=range(0, len(stream.frames), rows))
