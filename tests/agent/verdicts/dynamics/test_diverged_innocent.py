"""diverged is silent on new objectives, maximised ones, losses without a step, and data with NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from ammeter.verdicts.dynamics import diverged, divergence_state
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT, View
from ammeter.wire.frames import Frame, Hello, Schema
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings, judged
from tests.agent.training import watching
from tests.agent.verdicts.dynamics.test_diverged import SEEDS, Numbers, noisy
from tests.agent.verdicts.dynamics.test_diverged import judged as of_losses

WHOLE = 0


@pytest.mark.parametrize("cut", [WHOLE, 1, 7])
@pytest.mark.parametrize("ratio", [5e-4, 0.03])
def test_prices_a_hundred_times_as_large_in_the_same_loop_are_no_divergence(ratio: float, cut: int) -> None:
    for seed in SEEDS:
        dice = np.random.default_rng(seed)
        losses = np.concatenate([0.3 * noisy(dice, 150), 25e3 * np.exp(-np.arange(600) / 130) * noisy(dice, 600, 0.1)])
        norms = np.where(np.arange(750) < 150, 0.5, 1000.0)
        assert of_losses(losses, ratio, norms, cut) is None, seed


def test_the_first_rewards_of_a_value_loss_are_no_divergence_without_readings_of_steps() -> None:
    for seed in SEEDS:
        dice = np.random.default_rng(seed)
        falling = 8e3 * np.exp(-np.maximum(0, np.arange(280) - 2) / 20)
        losses = np.concatenate([1e-3 * noisy(dice, 120), (falling + 75) * noisy(dice, 280, 0.1)])
        norms = np.concatenate([0.1 * noisy(dice, 120), 500 * noisy(dice, 280)])
        assert of_losses(losses, None, norms) is None, seed


@pytest.mark.parametrize("ratio", [None, 0.002, 0.3])
def test_a_jump_whose_losses_do_not_fall_is_a_divergence(ratio: float | None) -> None:
    dice = np.random.default_rng(1)
    losses = np.concatenate([0.3 * noisy(dice, 150), 25e3 * noisy(dice, 120, 0.1)])
    finding = of_losses(losses, ratio, 0.5)
    assert finding
    opened = {None: 165, 0.002: 213, 0.3: 157}[ratio]
    assert ("page", 150, opened) == (finding.severity, finding.first_step, finding.opened_step)


def profits(count: int) -> Numbers:
    """A loss of -9 that falls to its lower limit of -29,000."""
    return np.asarray(-9.4 - 29e3 * (1 - np.exp(-np.arange(count) / 50)))


def test_a_negative_loss_that_falls_to_its_limit_is_no_divergence() -> None:
    steps = np.arange(300)
    assert of_losses(profits(300), 0.05, 350 + 350 * np.minimum(1, steps / 15) * np.exp(-steps / 100)) is None


def test_a_negative_loss_that_falls_faster_and_faster_is_a_divergence() -> None:
    losses = -9.4 * np.exp(np.minimum(60, np.arange(120)) / 2)
    finding = of_losses(losses, 0.05, np.sqrt(-losses))
    assert finding
    assert "page" == finding.severity
    assert finding.opened_step <= finding.first_step + 8


def test_a_loss_that_falls_by_six_decades_is_one_although_the_gradients_are_limited() -> None:
    falling = -9.4 * np.exp(np.minimum(60, np.arange(120)) / 2)
    finding = of_losses(falling, 0.05, np.full(120, 2.0))
    assert finding
    assert "Check the sign of the loss" in finding.fix
    assert of_losses(np.maximum(falling, -9.4e5), 0.05, np.full(120, 2.0)) is None


@pytest.mark.parametrize("cut", [WHOLE, 1, 8, 16])
def test_a_fall_by_six_decades_is_one_however_slow_it_is(cut: int) -> None:
    falling = -9.4 * 1.12 ** np.arange(160)
    finding = of_losses(falling, 0.005, np.full(160, 1.0), cut)
    assert finding
    assert 122 <= finding.first_step <= 123
    assert of_losses(np.maximum(falling, -9.4e5), 0.005, np.full(160, 1.0), cut) is None


def saliency(norm: float, ratio: float, main: Any = lambda step: 2.3 * math.exp(-step / 60)) -> Finding | None:
    """A score every second step beside the loss of the training, and what is concluded."""
    schema = Schema(scalars=(*Schema().scalars, "loss@a.py:6", "loss@a.py:9"))
    count = 200
    values = np.full((schema.width, count), ABSENT, np.float32)
    steps = np.arange(count)
    columns: dict[str, Any] = {"applied": 1, "grad_norm": np.where(steps < 40, 0.5, norm), "update_ratio": ratio}
    columns["loss@a.py:9"] = [main(step) for step in steps]
    columns["loss@a.py:6"] = np.where(steps % 2, ABSENT, np.where(steps < 40, 0.0, 60.0 * steps))
    for name, column in columns.items():
        values[schema.scalars.index(name)] = column
    return diverged.VERDICT.judge(divergence_state.State(), View(schema, steps, steps * 10**8, values))[1]


def test_one_of_several_losses_explodes_only_with_its_gradients() -> None:
    assert saliency(0.5, 0.02) is None
    for finding in (saliency(50.0, 0.02), saliency(0.5, 0.2)):
        assert finding
        assert "loss of a.py:6" in finding.title


def with_nan(kind: str, ratio: float = 1.6, losses: tuple[float, ...] = (0.69, 0.68)) -> Stream:
    """A NaN directly after a step that is as large as the weights, and the place of its origin."""
    stream = Stream()
    for loss in (*losses[:-1], *[losses[-1]] * 6):
        stream.good(loss=loss, norm=0.5)
    stream.good(loss=losses[-1], norm=0.5, update_ratio=ratio)
    stream.bad(last=5, loss=np.nan)
    stream.event("origin.found", kind=kind, module="", input="input", confidence="inputs", since=0)
    return stream.bad(last=5, loss=np.nan).bye()


@pytest.mark.parametrize("ratio", [1.6, 700.0])
def test_a_nan_in_the_input_is_not_a_large_steps(ratio: float) -> None:
    found = findings(with_nan("input", ratio))
    assert "diverged" not in found
    assert "nonfinite-loss" in found
    assert 8 == findings(with_nan("forward", ratio))["diverged"].opened_step


def test_no_cut_between_a_nan_and_its_origin_changes_the_finding() -> None:
    for kind in ("input", "forward"):
        stream = with_nan(kind)
        whole = findings(stream).get("diverged")
        for cut in range(1, len(stream.frames)):
            assert whole == judged(stream, [cut])[1].get("diverged"), cut


def test_a_program_that_ends_with_the_nan_has_diverged() -> None:
    stream = Stream().good(loss=2.3, norm=0.5, update_ratio=700.0).bad(last=5, loss=np.nan)
    assert "diverged" not in findings(stream)
    finding = findings(stream.bye())["diverged"]
    assert (0, 1) == (finding.first_step, finding.opened_step)


def test_a_nan_after_first_steps_from_weights_of_zero_is_not_theirs() -> None:
    ratios = np.full(12, float(ABSENT), np.float32)
    ratios[1] = 1.9
    for losses in ([0.69, 0.68], [0.69, 0.68, 0.66]):
        assert of_losses(np.array(losses + [math.nan] * (12 - len(losses))), ratios) is None


def test_a_nan_after_a_large_step_that_lowered_the_loss_is_not_its_own() -> None:
    ratios = np.full(40, float(ABSENT), np.float32)
    ratios[20] = 1.6
    assert of_losses(np.array([2.0] * 21 + [1.8] + [math.nan] * 18), ratios) is None
    finding = of_losses(np.array([2.0] * 21 + [2.2] + [math.nan] * 18), ratios)
    assert finding
    assert (20, 22) == (finding.first_step, finding.opened_step)


def test_a_small_loss_that_fell_after_bad_rows_has_learnt() -> None:
    start = [0.078, 0.084, 0.092, 2058.0, 2660.0, 2326.0]
    assert of_losses(np.array([*start, *[0.044] * 80])) is None
    finding = of_losses(np.array([*start, *[0.076] * 80]))
    assert finding
    assert "stays near its initial value" in finding.title
    assert "is 0.076, 2.6 % below the initial 0.078" in finding.cause
    above = of_losses(np.array([*start, *[0.2] * 80]))
    assert above
    assert "stays above its initial value" in above.title
    assert "is 0.2, no lower than the initial 0.078" in above.cause


@pytest.mark.parametrize("value", ["True", "True, False"])
def test_an_objective_that_is_maximised_may_rise(value: str) -> None:
    stream = Stream()
    assert isinstance(stream.frames[0], Hello)
    maximising: Frame = replace(stream.frames[0], environment={"optimizer": "Adam", "optimizer.maximize": value})
    for step in range(80):
        stream.good(loss=math.exp(min(step, 30) / 2), norm=1.0, update_ratio=0.3)
    assert "diverged" in findings(stream)
    stream.frames[0] = maximising
    assert "diverged" not in findings(stream)


def test_the_optimizer_tells_that_it_maximises(tmp_path: Any) -> None:
    weight = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=1.0, maximize=True)
    with watching(tmp_path, weight, optimizer) as seen:
        for _ in range(40):
            optimizer.zero_grad()
            torch.autograd.backward(weight(torch.ones(8, 4)).square().mean() * 0.2)
            optimizer.step()
    assert "diverged" not in seen.findings()
