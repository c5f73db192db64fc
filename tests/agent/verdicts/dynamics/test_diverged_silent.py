"""diverged is silent for losses that rise for other reasons, and finds the same in every division of a stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ammeter.wire.columns import ABSENT
from tests.agent.verdicts.dynamics.test_diverged import SEEDS, Numbers, exploding, judged, noisy


def bumps(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(2.3 * noisy(dice, count) * (1 + 3 * np.exp(-(((np.arange(count) - 12) / 4) ** 2))))


def from_zero(dice: np.random.Generator, count: int) -> Numbers:
    """As the distance of a student from a teacher that it starts equal to."""
    return np.asarray(0.4 * (1 - np.exp(-np.arange(count) / 30)) * noisy(dice, count, 0.5))


def rewards(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(-0.02 + 0.5 * dice.normal(size=count) + np.arange(count) / count)


def bootstrapped(dice: np.random.Generator, count: int) -> Numbers:
    """The squared error of values that grow with the rewards found, over three decades."""
    return np.asarray(1e-3 * 10 ** (6 * np.arange(count) / count) * noisy(dice, count, 0.7))


def sums_of_other_lengths(dice: np.random.Generator, count: int) -> Numbers:
    lengths = dice.integers(8, 512, count)
    return np.asarray(lengths * 2.3 * noisy(dice, count))


def a_longer_context(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(np.where(np.arange(count) < count // 2, 32, 2048) * 2.3 * noisy(dice, count))


def large_squares(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(1e6 * np.exp(-np.arange(count) / 300) * dice.pareto(2.0, count) + 1)


def game(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(0.7 + 4 * (1 - np.exp(-np.arange(count) / 100)) + np.abs(dice.normal(size=count)))


def spikes(dice: np.random.Generator, count: int) -> Numbers:
    at = np.arange(count) % 97
    return np.asarray(2.3 * noisy(dice, count) * np.where((at > 20) & (at < 26), 3000, 1))


def restarts(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(2.3 * (0.2 + np.exp(-(np.arange(count) % 100) / 30)) * noisy(dice, count))


def running_sum(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(np.cumsum(2.3 * noisy(dice, count)))


def negative(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(-300 - np.arange(count) + 200 * dice.normal(size=count))


def log_densities(dice: np.random.Generator, count: int) -> Numbers:
    """As of a flow, whose loss falls by four decades within the run."""
    return np.asarray(2.0 - 10 ** (4 * np.arange(count) / max(count, 300)) * noisy(dice, count))


def annealed(dice: np.random.Generator, count: int) -> Numbers:
    return np.asarray(90 * noisy(dice, count) + np.minimum(np.arange(count), 400))


LOOK_ALIKES: dict[str, Callable[[np.random.Generator, int], Numbers]] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(bumps, from_zero, rewards, bootstrapped, sums_of_other_lengths, a_longer_context, large_squares),
        *(game, spikes, restarts, running_sum, negative, log_densities, annealed),
    )
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_losses_that_rise_for_other_reasons_are_silent(name: str) -> None:
    for seed in SEEDS:
        for count in (30, 120, 600, 3000):
            dice = np.random.default_rng(1000 * seed + count)
            losses = LOOK_ALIKES[name](dice, count)
            ratios = np.where(np.arange(count) < 4, 0.15, 0.01) * noisy(dice, count)
            norms = noisy(dice, count) * np.sqrt(1 + np.abs(losses))
            assert judged(losses, ratios, norms) is None, (seed, count)


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_no_cut_changes_the_finding(cut: int) -> None:
    dice = np.random.default_rng(5)
    for losses in (exploding(2.0, 30, 90), 2.3 + 0.02 * np.arange(90.0), bumps(dice, 300), spikes(dice, 300)):
        ratios = np.where(dice.random(len(losses)) < 0.4, 0.3, float(ABSENT)).astype(np.float32)
        assert judged(losses, ratios) == judged(losses, ratios, cut=cut)
