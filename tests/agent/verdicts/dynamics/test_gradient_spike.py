"""gradient-spike fires where norms leave all that the run has shown, up or down, and bears every usual noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ammeter.verdicts.dynamics.gradient_spike import VERDICT
from ammeter.verdicts.dynamics.spike_episode import State
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT, View
from ammeter.wire.frames import Schema
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings

Norms = npt.NDArray[Any]
SCHEMA = Schema()


def judged(
    norms: Norms, losses: Norms | float = 2.0, clip: float | None = None, scale: float | None = None
) -> Finding | None:
    """What is concluded from a run with these norms, one for each applied step."""
    values = np.full((SCHEMA.width, len(norms)), ABSENT, np.float32)
    columns: dict[str, Norms | float | None] = {
        "grad_norm": norms,
        "loss": losses,
        "clip_max": clip,
        "applied": 1,
        "scale": scale,
    }
    for name, column in columns.items():
        if column is not None:
            values[SCHEMA.scalars.index(name)] = column
    steps = np.arange(len(norms))
    found: Finding | None = VERDICT.judge(State(), View(SCHEMA, steps, steps * 10**8, values))[1]
    return found


def noisy(dice: np.random.Generator, count: int, spread: float = 0.3) -> Norms:
    return np.asarray(np.exp(spread * dice.normal(size=count)))


def stepped(norms: Norms, **more: float) -> Stream:
    stream = Stream()
    for norm in norms:
        stream.good(norm=float(norm), **more)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["gradient-spike"]


SEEDS = range(12)
SPREADS = [0.02, 0.1, 0.3, 0.7, 1.5]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_jump_behind_first_steps_in_which_the_norm_has_fallen_fivefold_is_told(seed: int) -> None:
    falling = np.exp(-1.6 * np.minimum(1, np.arange(120) / 32))
    norms = falling * noisy(np.random.default_rng(seed), 120)
    norms[80:84] *= 60
    assert judged(norms[:80]) is None
    assert judged(norms) is not None


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("times", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("begin", [64, 300, 1111])
def test_three_norms_far_above_all_before_are_told(spread: float, times: float, begin: int) -> None:
    for seed in SEEDS:
        norms = 0.7 * noisy(np.random.default_rng(seed), begin + 50, spread)
        norms[begin : begin + 4] *= times
        finding = judged(norms, clip=1.0)
        assert finding
        assert begin == finding.first_step
        assert finding.opened_step <= begin + 3


@pytest.mark.parametrize("spread", [0.02, 0.3, 0.7, 1.0])
def test_a_norm_that_vanishes_while_the_loss_stays_is_told_at_the_tenth(spread: float) -> None:
    for seed in SEEDS:
        for times in (1e-9, 0.0):
            norms = noisy(np.random.default_rng(seed), 400, spread)
            norms[300:] *= times
            finding = judged(norms)
            assert finding
            assert (300, 309, 399, True) == (
                finding.first_step,
                finding.opened_step,
                finding.last_step,
                finding.active,
            )


def test_one_enormous_norm_is_told_where_nothing_limits_it_and_the_loss_does_not_come_back() -> None:
    dice = np.random.default_rng(3)
    norms, losses = noisy(dice, 400), 2 + 0.1 * dice.normal(size=400)
    norms[300] *= 300
    worse = np.where(np.arange(400) > 300, 1.0, 0.0)
    assert judged(norms, losses) is None
    assert judged(norms, losses + worse, clip=1.0) is None
    finding = judged(norms, losses + worse)
    assert finding
    assert (300, 310) == (finding.first_step, finding.opened_step)


def restarts(dice: np.random.Generator, count: int, spread: float) -> Norms:
    through = np.arange(count) % 300
    return np.asarray(noisy(dice, count, spread) * np.where(through < 30, 5, 1) * np.exp(-through / 300))


def hard_batches(share: float, most: float) -> Callable[[np.random.Generator, int, float], Norms]:
    def norms(dice: np.random.Generator, count: int, spread: float) -> Norms:
        hard = np.exp(dice.uniform(2, most, count))
        return np.asarray(noisy(dice, count, min(spread, 0.7)) * np.where(dice.random(count) < share, hard, 1))

    return norms


def heavy_tails(dice: np.random.Generator, count: int, spread: float) -> Norms:
    return np.asarray(np.exp(np.clip(dice.standard_t(3, size=count) * spread / 2, -50, 50)))


def correlated(dice: np.random.Generator, count: int, spread: float) -> Norms:
    walk, path = 0.0, []
    for norm in dice.normal(size=count):
        walk = 0.95 * walk + 0.3 * spread * norm
        path.append(walk)
    return np.exp(path)


def almost_learnt(dice: np.random.Generator, count: int, spread: float) -> Norms:
    return noisy(dice, count, spread) * dice.pareto(1.0, size=count) * np.exp(-np.arange(count) / count * 10)


HEALTHY: dict[str, Callable[[np.random.Generator, int, float], Norms]] = {
    "noise": noisy,
    "correlated noise": correlated,
    "heavy tails": heavy_tails,
    "hard batches, one in fifty": hard_batches(0.02, 4),
    "hard batches, one in ten": hard_batches(0.1, 6),
    "interpolation": almost_learnt,
    "restarts": restarts,
    "decay": lambda dice, count, spread: noisy(dice, count, spread) * np.exp(-np.arange(count) / count * 12),
    "warm-up": lambda dice, count, spread: noisy(dice, count, spread) * np.minimum(np.arange(count) + 2, 200) / 200,
    "a start": lambda dice, count, spread: noisy(dice, count, spread) * (1 + 100 * np.exp(-np.arange(count) / 5)),
    "a plateau that ends": lambda dice, count, spread: (
        noisy(dice, count, min(spread, 0.5)) * np.exp(3.4 * np.clip((np.arange(count) - count // 2) / 60, 0, 1))
    ),
    "two losses in turn": lambda dice, count, spread: (
        noisy(dice, count, spread) * np.where(np.arange(count) % 2, 50, 1)
    ),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", HEALTHY)
def test_usual_noise_is_silent(name: str, spread: float) -> None:
    for seed in SEEDS:
        for count in (100, 400, 2000):
            dice = np.random.default_rng(1000 * seed + count)
            norms, losses = HEALTHY[name](dice, count, spread), 2 + 0.3 * dice.normal(size=count)
            assert judged(norms, losses) is None, (seed, count)
            assert judged(norms, losses, clip=1.0) is None, (seed, count)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_has_learnt_all_is_silent(seed: int) -> None:
    dice = np.random.default_rng(seed)
    losses = 2 * np.exp(-np.arange(900) / 20)
    assert judged(losses * noisy(dice, 900), losses) is None
    sudden = np.where(np.arange(900) < 300, 1.0, 0.0)
    assert judged(sudden * noisy(dice, 900), sudden) is None


def test_before_sixty_four_readings_only_an_enormous_norm_is_reported() -> None:
    norms = np.ones(63)
    norms[40:] *= 900
    assert judged(norms) is None
    norms[40:] *= 2
    finding = judged(norms)
    assert finding
    assert (40, 40) == (finding.first_step, finding.opened_step)


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("begin", [16, 40, 64, 100, 1500])
def test_a_single_enormous_norm_is_reported_at_once(begin: int, clip: float | None) -> None:
    for seed in SEEDS:
        norms = 0.7 * noisy(np.random.default_rng(seed), begin + 40)
        norms[begin] = 3000.0
        finding = judged(norms, clip=clip)
        assert finding
        assert (begin, begin, 1) == (finding.first_step, finding.opened_step, finding.times)
        assert judged(norms[: begin + 1], clip=clip) == judged(norms[: begin + 2], clip=clip)


def test_single_norms_that_come_again_are_one_finding_that_returns() -> None:
    norms = np.ones(250)
    norms[49::50] = 4000.0
    finding = judged(norms)
    assert finding
    assert (5, 49) == (finding.times, finding.earliest_step)


def test_a_batch_with_three_hundred_times_the_norm_needs_a_loss_that_jumps_too() -> None:
    norms, losses = np.ones(60), np.full(60, 2.0)
    norms[30] = 500.0
    assert judged(norms, losses) is None
    losses[30] = 47.0
    finding = judged(norms, losses)
    assert finding
    assert "The loss was 47 at that step and 2 before." in finding.cause


def test_first_readings_that_are_few_or_small_are_no_spike() -> None:
    norms = np.full(60, 1e-6)
    norms[30:] = 1.0
    assert judged(norms) is None
    norms = np.ones(60)
    norms[12:] = 5000.0
    assert judged(norms) is None


def test_its_words_have_the_step_the_norms_the_tensor_and_a_limit() -> None:
    stream = stepped(np.full(80, 0.5))
    for _ in range(3):
        stream.good(norm=50.0, loss=9.0, stats={"grad.norm": [1, 1, 1, 49, 1, 1]})
    finding = found(stream)
    assert ("ticket", 80, 82) == (finding.severity, finding.first_step, finding.opened_step)
    assert "The gradient norm jumps to 100 times its usual value" == finding.title
    assert "At step 80 the norm of the gradients jumped from about 0.5 to as much as 50" in finding.cause
    assert "blocks.1.fc.weight has the largest gradient norm." in finding.cause
    assert "The loss was 9 at that step and 2 before." in finding.cause
    assert "clip_grad_norm_(model.parameters(), 1)" in finding.fix
    assert ("blocks.1.fc.weight", "blocks.1.fc") == (finding.tensor, finding.module)


def test_where_the_program_clips_no_limit_is_asked_for() -> None:
    stream = stepped(np.full(80, 0.5), clip_max=1.0)
    fix = found(stream.good(norm=50.0, clip_max=1.0).good(norm=60.0).good(norm=70.0)).fix
    assert "The clip at 1 already limits the size of such steps" in fix
    assert "clip_grad_norm_" not in fix


def test_a_fall_has_words_of_its_own() -> None:
    stream = stepped(np.full(80, 0.5))
    for _ in range(12):
        stream.good(norm=0.0)
    finding = found(stream)
    assert "From step 80 on the norm of the gradients is" in finding.cause
    assert "while the loss was 2" in finding.cause
    assert "detach()" in finding.fix
    assert finding.tensor is None


def test_it_is_over_after_calm_readings_and_told_once() -> None:
    norms = np.concatenate([np.full(100, 1.0), np.full(5, 90.0), np.full(31, 1.0)])
    stream = stepped(norms)
    assert found(stream).active
    assert (False, 104, 1) == tuple(getattr(found(stream.good()), name) for name in ("active", "last_step", "times"))


def test_what_is_looked_into_later_changes_no_word_of_it() -> None:
    stream = stepped(np.concatenate([np.full(100, 1.0), np.full(5, 90.0), np.full(80, 1.0)]))
    before = found(stream)
    for norm in (900.0, *[1.0] * 20):
        stream.good(norm=norm)
    assert before == found(stream)
    assert "in 5 readings" in before.cause


def test_what_lasts_is_the_runs_own_level_in_the_end() -> None:
    stream = stepped(np.concatenate([np.full(100, 1.0), np.full(300, 90.0)]))
    assert not found(stream).active


def test_steps_that_are_skipped_or_not_finite_are_left_out() -> None:
    stream = stepped(np.full(80, 0.5))
    for _ in range(5):
        stream.bad(65536.0, last=5, inf=True)
        stream.good(65536.0, norm=0.5)
    assert "gradient-spike" not in findings(stream)
