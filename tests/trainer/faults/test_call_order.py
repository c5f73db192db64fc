"""Symptoms of the faults in the order of calls."""

from __future__ import annotations

import math
from statistics import mean

import pytest

from console import Summary
from tests.trainer.conftest import Seen, Trains
from tests.trainer.faults.runs import STEPS, Check, bad_rows, healthy, symptoms

pytestmark = pytest.mark.long


def shows_clip_before_unscale(run: Summary, seen: Seen) -> None:
    assert run.applied >= run.steps - 1
    assert abs(mean(seen.losses[:10]) - mean(seen.losses[-10:])) < 0.1
    assert healthy(seen, "--optimizer", "sgd").val_loss < mean(seen.losses[-10:]) - 1


def shows_loss_not_scaled(run: Summary, seen: Seen) -> None:
    shows_clip_before_unscale(run, seen)
    assert 1.0 == seen.share(lambda gradient: gradient.abs() < 16)  # a scaled one reaches thousands


def shows_gradients_not_unscaled(run: Summary, seen: Seen) -> None:
    assert run.applied >= run.steps - 1
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[25:]))


def shows_mixed_scale_gradients(run: Summary, seen: Seen) -> None:
    assert run.applied == run.steps
    assert run.val_loss > healthy(seen).val_loss + 0.3


def shows_update_between_optimizers(run: Summary, seen: Seen) -> None:
    """41 good steps in a row are due before the scale grows; it has grown within the 21st."""
    assert [65536.0] * 20 + [131072.0] == seen.scales[:21]


def shows_gradients_not_reset(run: Summary, seen: Seen) -> None:
    assert (20, STEPS) == (run.applied, run.steps)
    assert [65536.0] * 20 + [2.0 ** (25 - n) for n in range(STEPS - 20)] == seen.scales
    assert all(map(math.isfinite, seen.losses))
    assert {} != bad_rows(seen.gradients[-1])


def shows_lopsided_step(run: Summary, seen: Seen) -> None:
    """The first optimizer, which the trainer counts, has made every step; the scale says that something was skipped."""
    assert run.applied == run.steps
    assert [512.0] * 29 + [1024.0] + [512.0] * 29 == seen.scales[:59]
    assert {"head.weight"} == bad_rows(seen.gradients[30]).keys()
    assert {} == bad_rows(seen.gradients[29]) | bad_rows(seen.gradients[31])


def shows_scheduler_ahead(run: Summary, seen: Seen) -> None:
    skipped = sum(after < before for before, after in zip(seen.scales, seen.scales[1:], strict=False))
    assert 16 <= run.steps - run.applied <= 30
    assert skipped <= run.steps - run.applied
    assert run.val_loss > healthy(seen).val_loss


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_unsupported_operator_ends_the_run_at_its_step(precision: str, arch: str, tiny: Trains, seen: Seen) -> None:
    arguments = ("--arch", arch, "--precision", precision, "--steps", "6", "--fault", "unsupported-op@4")
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        tiny(*arguments)
    assert 4 == len(seen.losses)
