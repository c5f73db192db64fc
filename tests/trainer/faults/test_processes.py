"""Symptoms of the faults of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from console import Summary
from faults import REGISTRY
from options import read_options
from tests import forked
from tests.trainer.conftest import TRAINER, Seen
from tests.trainer.faults.runs import Check, healthy, same_network, symptoms
from train import Trainer

pytestmark = pytest.mark.long


def shows_ranks_disagree(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss  # alone nothing is amiss
    trainer = Trainer(read_options(["--tiny", *same_network(seen), "--precision", "fp32"]))
    trainer.rank = 1
    REGISTRY["ranks-disagree"].breaks(trainer)
    for weight in trainer.model.parameters():
        weight.grad = torch.ones_like(weight)
    trainer.apply_gradients()
    assert not next(trainer.model.parameters()).isfinite().all()
    assert Trainer.apply_gradients == trainer.apply_gradients.__func__  # type: ignore[attr-defined]  # once


def shows_half_reduction(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss  # alone nothing is amiss


def shows_broken_in_reduction(run: Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss  # alone nothing is amiss


def shows_agent_blind(run: Summary, seen: Seen) -> None:
    assert (run.applied, run.val_loss) == ((other := healthy(seen)).applied, other.val_loss)
    assert all(isinstance(number, int) for number in seen.samples[:20])
    with pytest.raises(ReferenceError):
        float(seen.samples[20])


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])


def test_a_lost_run_is_killed_at_its_step_without_a_word() -> None:
    command = [sys.executable, str(TRAINER / "broken.py"), "--tiny", "--log-every", "1", "--fault", "run-lost@3"]
    environment = os.environ | {"AMMETER_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    run = forked.run(command, env=environment, capture_output=True, timeout=60)
    assert -signal.SIGKILL == run.returncode
    assert run.stdout.splitlines()[-1].startswith("step   3/200")
    assert "" == run.stderr


def test_a_stalled_run_makes_its_last_step_and_stays() -> None:
    program = [sys.executable, "-u", str(TRAINER / "broken.py")]
    command = [*program, "--tiny", "--log-every", "1", "--fault", "run-stalled@3"]
    environment = os.environ | {"AMMETER_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert any(line.startswith("step   3/200") for line in run.stdout)
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(1)
        run.kill()
        assert [] == [line for line in run.stdout if line.startswith("step")]
