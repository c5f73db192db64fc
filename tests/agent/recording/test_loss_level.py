from __future__ import annotations

import math
import random

import pytest

from ammeter.recording.loss_level import LossLevel


def _jumps(losses: list[float]) -> list[int]:
    level = LossLevel()
    return [step for step, loss in enumerate(losses) if level.jumps(loss)]


def _noise(count: int, spread: float, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [2.0 + spread * generator.gauss(0, 1) for _ in range(count)]


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.3])
def test_noise_is_no_jump(spread: float) -> None:
    assert [] == _jumps(_noise(20_000, spread))


def test_a_run_that_learns_does_not_jump() -> None:
    assert [] == _jumps([10 * math.exp(-step / 50) + 0.1 * noise for step, noise in enumerate(_noise(2000, 0.3))])


def test_losses_of_two_kinds_are_no_jumps() -> None:
    assert [] == _jumps([noise * (0.1 if step % 2 else 5.0) for step, noise in enumerate(_noise(2000, 0.1))])


@pytest.mark.parametrize("factor", [1.6, 100.0, 1e7, -3.0])
def test_a_jump_is_detected_in_its_own_step(factor: float) -> None:
    losses = _noise(200, 0.02)
    losses[150] *= factor
    assert [150] == _jumps(losses)


def test_a_fall_to_nothing_is_a_jump() -> None:
    assert 150 in _jumps(_noise(150, 0.1) + [0.0] * 20)


def test_a_lasting_jump_becomes_the_level() -> None:
    jumps = _jumps(_noise(200, 0.05) + [noise + 50 for noise in _noise(400, 0.05)])
    assert 200 == jumps[0]
    assert jumps[-1] < 260


def test_a_constant_loss_that_changes_once_is_one_jump_at_most_for_a_while() -> None:
    jumps = _jumps([0.0] * 100 + [1.0] * 400)
    assert 100 == jumps[0]
    assert jumps[-1] < 150


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_changes_nothing(loss: float) -> None:
    losses = _noise(200, 0.05)
    assert [] == _jumps([*losses[:100], loss, *losses[100:]])


def test_a_loss_that_explodes_within_a_few_steps_is_detected() -> None:
    assert 8 in _jumps([2.3] * 8 + [2.3 * 10**power for power in range(1, 30)])


@pytest.mark.parametrize(("loss", "falls"), [(1e-6, True), (-1e-6, True), (1e-3, False), (0.0, False), (1e6, False)])
def test_only_a_loss_with_another_weight_falls(loss: float, falls: bool) -> None:
    level = LossLevel()
    for earlier in _noise(20, 0.1):
        level.jumps(earlier)
    level.jumps(loss)
    assert level.falls(loss) is falls


def test_a_fall_by_its_weight_is_a_jump_however_the_losses_scatter() -> None:
    losses = [abs(loss) for loss in _noise(200, 0.9)]
    assert [] == _jumps(losses)
    assert 100 in _jumps([*losses[:100], *(1e-6 * loss for loss in losses[100:110])])
