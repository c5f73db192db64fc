"""Symptoms of the faults of checkpoints."""

from __future__ import annotations

import shutil
import time

import pytest
import torch

import train
from console import Summary
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import (
    CHECKPOINT,
    Check,
    checkpoint,
    healthy,
    healthy_losses,
    stand_in,
    symptoms,
    trained,
    with_options,
)

pytestmark = pytest.mark.long


@with_options("--checkpoint", CHECKPOINT)
def shows_checkpoint_exposed(run: Summary, seen: Seen) -> None:
    saved = checkpoint()
    assert (0o666, 0o755) == (saved.stat().st_mode & 0o777, saved.parent.stat().st_mode & 0o777)
    assert run.val_loss == healthy(seen).val_loss


@with_options("--checkpoint", CHECKPOINT)
def shows_checkpoint_incomplete(run: Summary, seen: Seen) -> None:
    assert ["model"] == list(torch.load(checkpoint(), weights_only=True)["parts"])
    assert run.val_loss == healthy(seen).val_loss


@with_options("--checkpoint", CHECKPOINT, "--checkpoint-every", "15")
def shows_checkpoint_stale(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss
    assert 15 == torch.load(checkpoint(), weights_only=True)["progress"]["step"]
    before = time.time_ns()
    began = time.perf_counter_ns()
    ended = time.perf_counter_ns()  # within the reads of the other clock: a wait between two of them lengthens that one
    assert time.time_ns() - before >= 1000 * (ended - began)


@with_options("--checkpoint", CHECKPOINT)
def shows_resume_mismatch(run: Summary, seen: Seen) -> None:
    """The first life is that of a healthy run; the second begins alike and then differs."""
    assert run.val_loss == healthy(seen).val_loss
    assert healthy_losses(seen) == seen.losses
    whole, forgot = (second_life(seen, *words) for words in ((), ("--fault", "resume-mismatch")))
    assert whole[0] == forgot[0]
    assert max(abs(loss - other) for loss, other in zip(whole, forgot, strict=True)) > 1e-3


def second_life(seen: Seen, *words: str) -> list[float]:
    """The losses of a run that resumes from a copy of the checkpoint."""
    copy = checkpoint().with_name("copy.pt")
    shutil.copy(checkpoint(), copy)
    vars(train)["ammeter"] = Seen()
    trained(seen, "--checkpoint", str(copy), *words, "--steps", "80", "--resume")
    return stand_in().losses


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
