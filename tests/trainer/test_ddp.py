"""Several ranks, with gloo on the CPU: started by torchrun, or as torchrun starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ddp
from tests import forked, ranks
from tests.trainer.conftest import TRAINER, Trains

pytestmark = pytest.mark.long


def unwatched() -> dict[str, str]:
    return os.environ | {"AMMETER_DISABLE": "1", "OMP_NUM_THREADS": "1"}


def run_on_two_ranks(path: Path, *words: str, program: str = "train.py") -> list[str]:
    """The lines that both ranks print."""
    command = [sys.executable, str(TRAINER / program), "--tiny", "--checkpoint", str(path), *words]
    return ranks.run(command, 2, env=unwatched(), timeout=240).splitlines()


def run_by_torchrun(path: Path, *words: str) -> list[str]:
    """The lines that both ranks print, started as a user starts them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(TRAINER / "train.py"), "--tiny", "--checkpoint", str(path), *words]
    run = forked.run(command, levels=1, env=unwatched(), capture_output=True, timeout=240)
    assert 0 == run.returncode, run.stderr[-3000:]
    return run.stdout.splitlines()


def weights(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)["parts"]["model"]
    return loaded


def test_one_process_is_rank_0_of_1_and_its_network_is_the_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (0, 1) == ddp.setup("cpu")
    model = torch.nn.Linear(1, 1)
    assert model is ddp.wrap(model)
    for enabled in (True, False):
        with ddp.sync_gradients(model, enabled):
            model(torch.ones(1)).backward()
    ddp.cleanup()


@pytest.mark.parametrize(("precision", "run"), [("fp16", run_by_torchrun), ("bf16", run_on_two_ranks)])
def test_two_ranks_train_on_twice_the_data_and_one_of_them_speaks(
    precision: str, run: Callable[..., list[str]], tmp_path: Path
) -> None:
    path = tmp_path / "two.pt"
    lines = run(path, "--precision", precision, "--steps", "4", "--accumulate", "2")
    assert 1 == len([line for line in lines if line.startswith("done: 4 steps, 4 applied")])
    assert {"step": 4, "applied": 4, "batches": 8} == torch.load(path, weights_only=True)["progress"]


def test_two_ranks_take_the_step_that_one_takes_with_the_same_batches(tmp_path: Path, tiny: Trains) -> None:
    """The mean over two ranks is the mean over two accumulated batches, as far as rounding goes."""
    words = ("--precision", "fp32", "--optimizer", "sgd", "--steps", "3")
    run_on_two_ranks(tmp_path / "two.pt", *words, "--accumulate", "2")
    tiny(*words, "--accumulate", "4", "--checkpoint", str(tmp_path / "one.pt"))
    one, two = weights(tmp_path / "one.pt"), weights(tmp_path / "two.pt")
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


def test_two_ranks_resume_with_exactly_the_same_numbers(tmp_path: Path) -> None:
    words = ("--steps", "6", "--checkpoint-every", "3", "--dropout", "0.1")
    run_on_two_ranks(tmp_path / "whole.pt", *words)
    path = tmp_path / "parted.pt"
    with pytest.raises(ranks.RankError, match="ended with -9"):  # both, after the step behind the first checkpoint
        run_on_two_ranks(path, *words, "--fault", "run-lost@4", program="broken.py")
    assert 3 == torch.load(path, weights_only=True)["progress"]["step"]
    run_on_two_ranks(path, *words, "--resume")
    whole, parted = weights(tmp_path / "whole.pt"), weights(path)
    assert all(torch.equal(whole[name], parted[name]) for name in whole)
