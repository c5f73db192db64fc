"""What a canary decides about two runs, from their histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ammeter.canary.decision import EXIT_CODES, Decision, decide, obstacle
from ammeter.canary.observed import Observed
from ammeter.canary.runs import Ended
from ammeter.verdicts.framework.model_shape import Model
from ammeter.verdicts.framework.run_history import Curve, RunHistory
from ammeter.wire.columns import Floats
from ammeter.wire.frames import Tensor

STOPPED = Ended(Path("runs"), True, -15)
RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(size=200).astype(np.float32)
FALLING = (1 + 4 * np.exp(-np.arange(200) / 60)).astype(np.float32)
OTHER_NOISE = RANDOM.normal(size=200).astype(np.float32)


def observed(
    loss: Floats | None = None,
    seconds: float | Floats = 0.01,
    norms: Floats | None = None,
    applied: float = 1.0,
    memory: float = 0.0,
    **facts: Any,
) -> Observed:
    count = 200 if loss is None else len(loss)
    columns = {
        "loss": FALLING + 0.1 * NOISE if loss is None else loss,
        "grad_norm": np.full(count, 2.0) + 0.5 * NOISE[:count] if norms is None else norms,
        "step_seconds": np.broadcast_to(seconds, count),
        "applied": np.full(count, applied),
        "device_allocated_bytes": np.full(count if memory else 0, memory),
    }
    curves = {
        name: Curve(np.arange(len(values), dtype=np.int64), np.asarray(values, np.float32))
        for name, values in columns.items()
    }
    halves = facts.get("halves", frozenset())
    dtype = next(iter(halves), "float32")
    model = Model((Tensor("weight", (4, 4), dtype),))
    precision = next(iter(facts.get("autocast", ())), model.precision or "float32")
    history = RunHistory(curves=curves, precision=precision, last_step=count - 1, model=model)
    return Observed(history, Path("runs"), **facts)


def plain(**facts: Any) -> Observed:
    return observed(**facts)


def amp(**facts: Any) -> Observed:
    return observed(**{"autocast": frozenset({"float16"}), "scaled": True, **facts})


def decided(mine: Observed | None, theirs: Observed | None = None, end: Ended = STOPPED) -> Decision:
    return decide(plain() if theirs is None else theirs, mine, end)


def test_a_twin_is_ok() -> None:
    decision = decided(amp())
    assert ("ok", 0) == (decision.result, EXIT_CODES[decision.result])
    assert ["switched off in the float32 run: autocast (float16) and GradScaler"] == decision.notes


def test_rounding_that_moves_single_losses_is_ok() -> None:
    assert "ok" == decided(amp(loss=FALLING + 0.1 * NOISE + 0.01 * OTHER_NOISE)).result


def test_batches_in_another_order_are_ok_and_the_start_is_a_note() -> None:
    decision = decided(amp(loss=FALLING * np.float32(1.05) + 0.2 * OTHER_NOISE))
    assert "ok" == decision.result
    assert any("the runs do not start alike. Set the seed" in note for note in decision.notes)


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_a_loss_that_does_not_fall_differs(factor: float) -> None:
    stuck = np.maximum(FALLING, 3) + 0.1 * NOISE
    decision = decided(amp(loss=factor * stuck), plain(loss=factor * (FALLING + 0.1 * NOISE)))
    assert ("differs", 1) == (decision.result, EXIT_CODES[decision.result])
    assert "the loss is higher by " in decision.reasons[0]
    assert "of what it fell in float32, in the last quarter of 200 common steps (" in decision.reasons[0]


def test_a_loss_that_falls_further_differs_too() -> None:
    decision = decided(amp(loss=np.where(np.arange(200) < 50, FALLING, FALLING / 2)), plain(loss=FALLING))
    assert "differs" == decision.result
    assert "the loss is lower by " in decision.reasons[0]


def test_a_loss_close_to_zero_is_measured_by_what_it_has_fallen() -> None:
    vanishing = np.exp(-np.arange(200) / 10)
    assert "ok" == decided(amp(loss=vanishing + 1e-3), plain(loss=vanishing)).result


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_differs_unless_float32_has_it_too(value: float) -> None:
    broken = np.where(np.arange(200) == 150, value, FALLING)
    assert ["the loss is not finite at step 150, and finite there in float32"] == decided(amp(loss=broken)).reasons
    assert "ok" == decided(amp(loss=broken), plain(loss=broken)).result


def test_a_run_whose_late_losses_are_all_nan_differs() -> None:
    broken = np.where(np.arange(200) < 100, FALLING, np.nan)
    assert "differs" == decided(amp(loss=broken)).result


def test_gradient_norms_that_are_far_apart_differ() -> None:
    decision = decided(amp(norms=np.full(200, 9.0)))
    assert "differs" == decision.result
    assert "times that in float32, in the last quarter" in decision.reasons[0]
    assert decision.norm is not None
    assert 4 < decision.norm.ratio < 5
    assert "ok" == decided(amp(norms=np.full(200, 2.5))).result


def test_only_skipped_steps_differ() -> None:
    decision = decided(amp(applied=0.0))
    assert ["no step of the AMP run was applied: all 200 steps were skipped"] == decision.reasons


def test_longer_steps_are_slower_and_shorter_ones_are_ok() -> None:
    decision = decided(amp(seconds=0.012))
    assert ("slower", 1) == (decision.result, EXIT_CODES[decision.result])
    assert "12 ms per step against 10 ms, +20.00 %" in decision.reasons[0]
    assert "ok" == decided(amp(seconds=0.0102)).result
    assert "ok" == decided(amp(seconds=0.005)).result


def test_steps_that_are_not_clearly_longer_are_ok_and_the_text_says_why() -> None:
    uneven = amp(seconds=np.where(np.arange(200) % 5 < 2, 0.009, 0.02))
    decision = decided(uneven)
    assert "ok" == decision.result
    assert "not slower, as less than three quarters of the steps take longer" in decision.reasons[-1]


def test_the_sign_of_a_difference_is_that_of_the_numbers_beside_it() -> None:
    skewed = np.where(np.arange(200) % 10 == 0, np.float32(4), np.float32(1)) + np.float32(0.001) * OTHER_NOISE
    decision = decided(amp(loss=skewed), plain(loss=np.full(200, np.float32(1.1))))
    loss = decision.loss
    assert loss is not None
    assert loss.share > 0
    assert loss.run > loss.baseline


def test_a_difference_is_stated_before_the_time_it_takes() -> None:
    assert "differs" == decided(amp(seconds=0.02, loss=np.full(200, 9.0))).result


def test_more_device_memory_is_a_note() -> None:
    decision = decided(amp(memory=3.0 * 2**30), plain(memory=2.0 * 2**30))
    assert "ok" == decision.result
    assert "device memory: 3.00 GiB against 2.00 GiB, +50.00 %; at most +5 %" in decision.notes


def test_only_the_amp_run_failing_differs() -> None:
    failed = Ended(Path("runs"), False, 1)
    decision = decided(amp(loss=FALLING[:50], ending="RuntimeError: x"), end=failed)
    assert "differs" == decision.result
    assert decision.reasons[0].startswith("the AMP run ended with exit code 1 after 50 steps: RuntimeError: x")
    assert ["the AMP run ended with exit code 1 before its first step; the float32 run did not"] == decided(
        None, end=failed
    ).reasons


@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        (observed(), "the command uses no autocast and no GradScaler"),
        (amp(loss=FALLING[:10], norms=FALLING[:10]), "fewer than 20 steps"),
        (None, "no step of it was watched"),
    ],
)
def test_an_amp_run_that_shows_nothing_is_not_comparable(mine: Observed | None, reason: str) -> None:
    decision = decided(mine)
    assert ("not comparable", 2) == (decision.result, EXIT_CODES[decision.result])
    assert reason in decision.reasons[0]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (None, "the float32 run was stopped by the canary and no step of it was watched"),
        (plain(halves=frozenset({"float16"})), "the weights are float16"),
        (plain(autocast=frozenset({"bfloat16"})), "has entered autocast in bfloat16"),
        (plain(scaled=True), "has an enabled GradScaler"),
    ],
)
def test_a_run_that_is_not_in_float32_is_no_baseline(run: Observed | None, reason: str) -> None:
    assert reason in obstacle(run, STOPPED)


def test_a_float32_run_that_fails_is_no_baseline() -> None:
    reason = obstacle(plain(ending="RuntimeError: dtype"), Ended(Path("runs"), False, 1))
    assert "the float32 run ended with exit code 1 after 200 steps: RuntimeError: dtype" in reason


def test_a_run_in_float32_is_a_baseline_also_with_an_own_loss_scale() -> None:
    assert ["", ""] == [obstacle(run, STOPPED) for run in (plain(), plain(scaled=True, own_scale=True))]


def test_an_own_loss_scale_and_half_weights_are_notes() -> None:
    decision = decided(amp(own_scale=True), plain(scaled=True, own_scale=True))
    assert "not switched off: a loss scale of the program's own, which the float32 run also has" in decision.notes
