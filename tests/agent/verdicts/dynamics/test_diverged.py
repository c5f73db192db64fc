"""diverged fires where steps are too large for the model, and is silent on losses that rise for other reasons."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from ammeter.verdicts.causality import explain
from ammeter.verdicts.dynamics.diverged import VERDICT
from ammeter.verdicts.dynamics.divergence_state import State
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT, View
from ammeter.wire.frames import Schema
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken, healthy

Numbers = npt.NDArray[Any]
SCHEMA = Schema()
SEEDS = range(12)


def judged(
    losses: Numbers, ratios: Numbers | float | None = None, norms: Numbers | float | None = 1.0, cut: int = 0
) -> Finding | None:
    """What is concluded from these losses of applied steps, in one view or in views of `cut` rows."""
    values = np.full((SCHEMA.width, len(losses)), ABSENT, np.float32)
    columns: dict[str, Any] = {"loss": losses, "grad_norm": norms, "update_ratio": ratios, "applied": 1}
    for name, column in columns.items():
        if column is not None:
            values[SCHEMA.scalars.index(name)] = column
    steps = np.arange(len(losses))
    whole = View(SCHEMA, steps, steps * 10**8, values)
    state, found = State(), None
    for begin in range(0, len(losses), cut or len(losses)):
        state, finding = VERDICT.judge(state, whole.rows(begin, min(len(losses), begin + (cut or len(losses)))))
        found = finding or found
    return found


def noisy(dice: np.random.Generator, count: int, spread: float = 0.2) -> Numbers:
    return np.asarray(np.exp(spread * dice.normal(size=count)))


def exploding(factor: float, begin: int, count: int = 60) -> Numbers:
    """A loss of 2.3 that is multiplied by a factor in each step from `begin` on, up to 1e30."""
    powers = np.maximum(0, np.arange(count) - begin + 1.0)
    return np.asarray(2.3 * np.exp(np.minimum(powers * math.log(factor), 69.0)))


@pytest.mark.parametrize("cut", [0, 1, 7])
@pytest.mark.parametrize("begin", [1, 2, 9, 300])
@pytest.mark.parametrize("factor", [1.5, 4.0, 60.0, 1e7])
def test_a_loss_that_explodes_is_found_from_the_loss_alone(factor: float, begin: int, cut: int) -> None:
    finding = judged(exploding(factor, begin, begin + 60), norms=None, cut=cut)
    assert finding
    assert "page" == finding.severity
    assert begin <= finding.first_step <= begin + 3 + 3 / math.log(factor)
    assert finding.opened_step <= finding.first_step + 24


@pytest.mark.parametrize("cut", [0, 1, 7])
@pytest.mark.parametrize("factor", [2.0, 4.0, 60.0])
def test_a_loss_of_the_wrong_sign_that_explodes_is_found(factor: float, cut: int) -> None:
    finding = judged(-exploding(factor, 20, 80), norms=None, cut=cut)
    assert finding
    assert ("page", True) == (finding.severity, finding.active)
    assert 20 < finding.first_step <= 32
    assert "The loss falls from" in finding.title
    assert finding.fix.startswith("Check the sign of the loss")
    assert finding == judged(-exploding(factor, 20, 80), norms=None)


@pytest.mark.parametrize("ending", [math.nan, math.inf])
@pytest.mark.parametrize("rise", [[90.0], [8.0, 70.0], [9.0, 20.0, 15.0], [1e7, 1e20]])
@pytest.mark.parametrize("before", [1, 40])
def test_a_rise_that_ends_in_nan_is_the_cause_of_it(before: int, rise: list[float], ending: float) -> None:
    finding = judged(np.array([2.3] * before + rise + [ending] * 5))
    assert finding
    assert (before, before + len(rise), "page") == (finding.first_step, finding.opened_step, finding.severity)
    assert finding.evidence["nonfinite_from"] == before + len(rise)


def test_a_nan_after_a_step_that_replaced_the_weights_is_the_steps() -> None:
    ratios = np.full(12, float(ABSENT), np.float32)
    ratios[0] = 740.0
    finding = judged(np.array([2.3, *[math.nan] * 11]), ratios)
    assert finding
    assert (0, 1) == (finding.first_step, finding.opened_step)
    assert "A step replaced the weights" in finding.title
    assert "up to 7.4e+02 of their norm" in finding.cause


def test_a_nan_out_of_a_calm_loss_is_not_a_divergence() -> None:
    for last in (2.3, 3.0, 6.0):
        assert judged(np.array([2.3] * 30 + [last] + [math.nan] * 30), 0.002) is None


def test_a_loss_that_stays_three_times_as_high_needs_large_steps_or_norms_as_well() -> None:
    losses = np.where(np.arange(120) < 40, 2.0, 9.0)
    late = np.where(np.arange(120) < 40, 1.0, 500.0)
    assert judged(losses, 0.002) is None
    assert judged(losses, None) is None
    for finding, opened in ((judged(losses, 0.15), 55), (judged(losses, None, late), 55)):
        assert finding
        assert ("ticket", 40, opened) == (finding.severity, finding.first_step, finding.opened_step)
    after_small_steps = judged(losses, 0.002, late)
    assert after_small_steps
    assert 103 == after_small_steps.opened_step


def test_a_run_whose_explosion_left_it_at_its_initial_loss_has_lost_its_units() -> None:
    losses = np.array([2.3, 900.0, 4e5, 2e7, 8e3, *[2.303] * 80])
    finding = judged(losses)
    assert finding
    assert 1 == finding.first_step
    assert "no lower than the initial 2.3" in finding.cause
    assert judged(np.array([2.3, 900.0, 4e5, 2e7, 8e3, *[1.7] * 80])) is None


def test_steps_that_move_the_weights_by_a_fifth_while_the_loss_rises_are_found() -> None:
    dice = np.random.default_rng(0)
    losses = 2.3 + 0.02 * np.arange(60) + 0.1 * dice.normal(size=60)
    finding = judged(losses, 0.4)
    assert finding
    assert "Steps change the weights by a large share" in finding.title
    assert judged(losses, 0.02) is None
    assert judged(losses[::-1], 0.4) is None


@pytest.mark.parametrize("spread", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_noise_of_any_scale_is_silent(scale: float, spread: float) -> None:
    for seed in SEEDS:
        dice = np.random.default_rng(seed)
        assert judged(scale * noisy(dice, 2000, spread), 0.05) is None


def test_it_closes_when_the_loss_is_back_at_its_level() -> None:
    losses = np.concatenate([np.full(40, 2.0), np.full(20, 9.0), np.full(31, 1.9)])
    finding = judged(losses, 0.2)
    assert finding
    assert finding.active
    over = judged(np.append(losses, 1.9), 0.2)
    assert over
    assert (False, 59) == (over.active, over.last_step)


def test_a_level_that_lasts_is_no_recovery() -> None:
    finding = judged(np.concatenate([np.full(40, 2.0), np.full(900, 9.0)]), 0.2)
    assert finding
    assert finding.active


@broken
def diverged() -> Stream:
    """A learning rate a thousand times too high, whose NaN comes within ten steps."""
    stream = Stream()
    for loss in (2.3, 40.0, 900.0, 2e5, 7e9):
        stream.good(loss=loss, norm=loss, update_ratio=2.0)
    for _ in range(20):
        stream.bad(last=5, loss=np.nan)
    return stream


@healthy
def a_loss_that_starts_at_zero_and_rises() -> Stream:
    stream = Stream()
    for step in range(300):
        stream.good(loss=0.5 * (1 - math.exp(-step / 40)), norm=0.1 + step / 300)
    return stream.bye()


@healthy
def a_bad_batch_of_four_decades() -> Stream:
    stream = warm(80)
    stream.good(65536.0, loss=2e4, norm=6.0)
    for _ in range(80):
        stream.good(65536.0)
    return stream.bye()


def test_the_words_have_both_losses_the_step_the_rate_and_what_to_set() -> None:
    stream = Stream()
    stream.frames[0] = torch_free_hello(stream)
    for loss in (2.3, 40.0, 900.0, 2e5, 7e9):
        stream.good(loss=loss, norm=loss, update_ratio=2.0)
    finding = findings(stream.bad(last=5, loss=np.nan))["diverged"]
    assert ("page", 1, 3) == (finding.severity, finding.first_step, finding.opened_step)
    assert "rises from 2.3 to 7e+09, far above its level" in finding.title
    assert "Training diverges since step 1: the loss rose from 2.3 to as much as 7e+09" in finding.cause
    assert "NaN or infinite at step 5" in finding.cause
    assert "by up to 2 of their norm; 0.001 is usual" in finding.cause
    assert "The gradient norm reached 7e+09; in earlier readings it was at most 2.3." in finding.cause
    assert "The learning rate of AdamW was 1.0 at the start." in finding.cause
    assert (
        "Divide the learning rate of AdamW by 200 or more: to 0.005, if it is still the 1.0 of the start."
        in finding.fix
    )
    assert "clip_grad_norm_(model.parameters(), 4.6)" in finding.fix
    assert finding.title.startswith("Steps are too large: the loss rises")


def test_a_rate_that_was_read_is_lowered_and_what_raised_it_is_named() -> None:
    stream = Stream()
    stream.frames[0] = torch_free_hello(stream)
    for loss in (2.3, 40.0, 900.0, 2e5, 7e9):
        stream.good(loss=loss, norm=loss, update_ratio=2.0, optimizer_lr=45.0)
    fix = findings(stream)["diverged"].fix
    assert fix.startswith("Lower the learning rate of AdamW to 0.2 or less: at step 1 it was 45, about 200 times that")
    assert "because a schedule or the program raises it from the initial 1.0." in fix


def test_a_larger_step_after_the_opening_is_part_of_the_words() -> None:
    stream = Stream()
    for loss, ratio in ((2.3, 2.0), (40.0, 2.0), (900.0, 2.0), (2e5, 2.0), (7e9, 50.0)):
        stream.good(loss=loss, norm=loss, update_ratio=ratio)
    finding = findings(stream)["diverged"]
    assert (3, 50.0) == (finding.opened_step, finding.evidence["update_ratio"])


def torch_free_hello(stream: Stream) -> Any:
    return replace(stream.frames[0], environment={"optimizer": "AdamW", "optimizer.lr": "1.0"})


def test_what_comes_of_it_is_listed_inside_it() -> None:
    (cause,) = explain([("it", finding) for finding in findings(diverged()).values()])
    assert "diverged" == cause.finding.verdict
    assert {"nonfinite-loss"} <= {finding.verdict for finding in cause.consequences}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cut", [0, 5])
def test_a_new_objective_with_a_larger_loss_that_training_reduces_is_no_divergence(seed: int, cut: int) -> None:
    dice = np.random.default_rng(seed)
    falling = 300 * np.exp(-np.arange(120) / 40)
    losses = np.concatenate([0.3 * noisy(dice, 100), falling * noisy(dice, 120, 0.1)])
    norms = np.concatenate([0.5 * noisy(dice, 100), falling * noisy(dice, 120, 0.1)])
    assert judged(losses, 0.01, norms, cut) is None
    losses[100:] = 300 * noisy(dice, 120, 0.1)
    finding = judged(losses, 0.01, norms, cut)
    assert finding
    assert ("ticket", 100) == (finding.severity, finding.first_step)
