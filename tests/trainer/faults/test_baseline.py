"""Symptoms of the faults that show beside a baseline run."""

from __future__ import annotations

import pytest
import torch

from console import Summary
from faults import REGISTRY
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import Check, healthy, stand_in, symptoms, trained

pytestmark = pytest.mark.long


def shows_slower_than_fp32(run: Summary, seen: Seen) -> None:
    assert torch.is_anomaly_enabled()
    torch.autograd.set_detect_anomaly(False)
    assert run.val_loss == healthy(seen, "--precision", "bf16").val_loss


def shows_validation_drift(run: Summary, seen: Seen) -> None:
    assert run.applied == run.steps
    assert run.val_loss < seen.losses[0] - 0.05  # it learns, and slowly
    assert run.val_loss > healthy(seen, "--precision", "fp32").val_loss + 0.2


def shows_not_comparable(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen, "--precision", "bf16").val_loss
    assert ("--precision", "fp32", "--batch", "2") == REGISTRY["not-comparable"].against


def shows_not_reproducible(run: Summary, seen: Seen) -> None:
    losses = seen.losses
    assert trained(seen).val_loss == pytest.approx(run.val_loss, abs=0.01)
    same = [mine == other for mine, other in zip(losses, stand_in().losses, strict=True)]
    assert all(same[:5])
    assert not all(same)


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
