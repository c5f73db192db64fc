"""Symptoms of the faults of what a program computes beside its training."""

from __future__ import annotations

import math

import pytest

from console import Summary
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import Check, healthy_losses, symptoms

pytestmark = pytest.mark.long


def shows_nonfinite_validation(run: Summary, seen: Seen) -> None:
    assert run.val_loss is not None
    assert math.isnan(run.val_loss)
    assert run.applied == run.steps
    assert healthy_losses(seen) == seen.losses


def shows_rollout_mismatch(run: Summary, seen: Seen) -> None:
    assert healthy_losses(seen) == seen.losses


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
