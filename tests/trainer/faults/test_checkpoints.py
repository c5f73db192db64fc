"""Symptoms of the faults of checkpoints."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
import torch

import train
from console import Summary
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import STEPS, Check, healthy, stand_in, symptoms, trained

pytestmark = pytest.mark.long


def shows_checkpoint_exposed(run: Summary, seen: Seen) -> None:
    saved = saved_with(seen, "checkpoint-exposed")
    assert (0o666, 0o755) == (saved.stat().st_mode & 0o777, saved.parent.stat().st_mode & 0o777)
    assert run.val_loss == healthy(seen).val_loss


def shows_checkpoint_incomplete(run: Summary, seen: Seen) -> None:
    assert ["model"] == list(torch.load(saved_with(seen, "checkpoint-incomplete"), weights_only=True)["parts"])
    assert run.val_loss == healthy(seen).val_loss


def shows_checkpoint_stale(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss
    path = Path(tempfile.mkdtemp()) / "kept" / "run.pt"
    trained(seen, "--fault", "checkpoint-stale", "--checkpoint", str(path), "--checkpoint-every", "15")
    assert 15 == torch.load(path, weights_only=True)["progress"]["step"]
    before, began = time.time_ns(), time.perf_counter_ns()
    assert time.time_ns() - before >= 1000 * (time.perf_counter_ns() - began)


def shows_resume_mismatch(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss
    whole, forgot = (resumed(seen, *words) for words in ((), ("--fault", "resume-mismatch")))
    assert whole[: STEPS + 1] == forgot[: STEPS + 1]
    assert max(abs(loss - other) for loss, other in zip(whole[STEPS:], forgot[STEPS:], strict=True)) > 1e-3


def resumed(seen: Seen, *words: str) -> list[float]:
    """The losses of two lives of one run."""
    vars(train)["ammeter"] = Seen()
    path = Path(tempfile.mkdtemp()) / "run.pt"
    for more in ((), ("--steps", "80", "--resume")):
        trained(seen, "--checkpoint", str(path), *words, *more)
    return stand_in().losses


def saved_with(seen: Seen, fault: str) -> Path:
    """What a run with this fault keeps. The folder is private, whatever the fault makes of the one below."""
    path = Path(tempfile.mkdtemp()) / "kept" / "run.pt"
    trained(seen, "--fault", fault, "--checkpoint", str(path))
    return path


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
