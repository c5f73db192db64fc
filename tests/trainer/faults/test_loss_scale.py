"""Symptoms of the faults of the loss scale."""

from __future__ import annotations

import math

import pytest
import torch

import broken
from console import Summary
from faults.inject import middle_block
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import (
    CHECKPOINT,
    SMALLEST_NORMAL,
    STEPS,
    Check,
    bad_rows,
    checkpoint,
    healthy,
    path,
    same_network,
    symptoms,
    with_options,
)

pytestmark = pytest.mark.long


def shows_overflow_storm(run: Summary, seen: Seen) -> None:
    skips = [after < before for before, after in zip(seen.scales, seen.scales[1:], strict=False)]
    assert 0.6 < sum(skips[20:]) / len(skips[20:]) < 0.7
    assert 2.5 > seen.losses[0] - seen.losses[-1] > 0.2  # it learns, only slowly


def shows_scale_collapse(run: Summary, seen: Seen) -> None:
    assert (20, STEPS) == (run.applied, run.steps)
    assert [65536.0 * 2.0**-n for n in range(STEPS - 20 + 1)] == seen.scales[19:]
    assert all(map(math.isfinite, seen.losses))
    assert {path(seen, middle_block(seen.model).mixes, "weight"): {3}} == bad_rows(seen.gradients[20])
    assert {} == bad_rows(seen.gradients[19])


def shows_scale_underflowed(run: Summary, seen: Seen) -> None:
    assert 21 == run.applied  # one step too many
    assert all(map(math.isfinite, seen.losses[:21]))
    assert all(map(math.isnan, seen.losses[21:]))
    assert not any(parameter.isfinite().any() for parameter in seen.model.parameters())


def shows_gradient_underflow(run: Summary, seen: Seen) -> None:
    assert [1.0] * STEPS == seen.scales
    loses_gradients(run, seen)


def shows_no_loss_scaling(run: Summary, seen: Seen) -> None:
    assert seen.scaler is None
    assert run.scale is None
    loses_gradients(run, seen)


def shows_scaler_disabled(run: Summary, seen: Seen) -> None:
    assert not seen.scaler.is_enabled()
    assert {} == seen.scaler.state_dict()
    loses_gradients(run, seen)


def shows_pointless_scaler(run: Summary, seen: Seen) -> None:
    assert [65536.0] * STEPS == seen.scales
    assert run.val_loss == pytest.approx(healthy(seen, "--precision", "bf16").val_loss, abs=0.05)


@with_options("--steps", "2", "--checkpoint", CHECKPOINT)
def shows_scaler_not_restored(run: Summary, seen: Seen) -> None:
    saved = torch.load(checkpoint(), weights_only=True)
    saved["parts"]["scaler"]["scale"] = 1024.0
    resumed = ["--tiny", *same_network(seen), "--checkpoint", str(checkpoint()), "--steps", "4", "--resume"]
    for fault, scale in ((["--fault", "scaler-not-restored"], 65536.0), ([], 1024.0)):
        torch.save(saved, checkpoint())
        assert scale == broken.main([*resumed, *fault]).scale


def shows_scaler_rebuilt(run: Summary, seen: Seen) -> None:
    assert 0 == healthy(seen).steps - healthy(seen).applied
    assert 4 <= run.steps - run.applied <= 10
    assert run.scale == 2.0 ** (24 - run.steps + run.applied)


def loses_gradients(run: Summary, seen: Seen) -> None:
    assert run.applied == run.steps
    assert seen.share(lambda gradient: gradient == 0) > 0.4
    assert seen.share(lambda gradient: gradient.abs() < SMALLEST_NORMAL) > 0.99
    assert run.val_loss > healthy(seen).val_loss + 0.2


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
