from __future__ import annotations

import os
import random
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import broken
import checkpoint
from tests import forked
from tests.trainer.conftest import TRAINER, Seen, Trains


class Interrupted(Exception):
    """Stands for whatever ends a process between two steps."""


def run_until(step: int, path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """A life of the run that ends right after the checkpoint of that step."""
    save = checkpoint.save

    def last_save(path: Path, parts: Any, progress: checkpoint.Progress, options: Any) -> None:
        save(path, parts, progress, options)
        if progress.step == step:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", last_save)
        with pytest.raises(Interrupted):
            broken.main(["--tiny", *arguments, "--checkpoint", str(path)])


def content(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def same(one: Any, other: Any) -> bool:
    """Equal down to the last bit, through dictionaries and lists."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


RECIPES = {
    "fp16": ["--precision", "fp16"],
    "fp16 while steps are skipped": ["--precision", "fp16", "--fault", "overflow-storm"],
    "bf16": ["--precision", "bf16"],
    "fp32": ["--precision", "fp32"],
    "cnn": ["--arch", "cnn", "--precision", "bf16"],
    "cnn in fp16 with sgd and accumulation": ["--arch", "cnn", "--optimizer", "sgd", "--accumulate", "2"],
    "sgd with accumulation": ["--precision", "fp16", "--optimizer", "sgd", "--accumulate", "2"],
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_a_resumed_run_goes_on_with_exactly_the_same_numbers(
    recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    whole, parted = tmp_path / "whole.pt", tmp_path / "parted.pt"
    recipe = [*recipe, "--steps", "24", "--dropout", "0.1", "--checkpoint-every", "10"]
    broken.main(["--tiny", *recipe, "--checkpoint", str(whole)])
    losses, val_losses = seen.losses.copy(), seen.val_losses.copy()

    seen.losses.clear()
    run_until(10, parted, monkeypatch, *recipe)
    random.random(), torch.rand(3)  # another process stands elsewhere
    seen.val_losses.clear()
    broken.main(["--tiny", *recipe, "--checkpoint", str(parted), "--resume"])

    assert losses == seen.losses
    assert val_losses == seen.val_losses
    assert same(content(whole), content(parted))


def test_a_run_that_was_killed_resumes_from_its_last_checkpoint(tmp_path: Path, tiny: Trains) -> None:
    path = tmp_path / "run.pt"
    command = [sys.executable, str(TRAINER / "broken.py"), "--tiny", "--steps", "12", "--checkpoint-every", "5"]
    killed = forked.run(
        [*command, "--checkpoint", str(path), "--fault", "run-lost@8"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=60,
    )
    assert -signal.SIGKILL == killed.returncode
    assert 5 == content(path)["progress"]["step"]
    recipe = ["--steps", "12", "--checkpoint-every", "5"]
    resumed = tiny(*recipe, "--checkpoint", str(path), "--resume")
    assert tiny(*recipe).val_loss == resumed.val_loss


def test_a_checkpoint_holds_all_that_a_run_consists_of(tmp_path: Path, tiny: Trains) -> None:
    tiny("--steps", "3", "--checkpoint", str(tmp_path / "run.pt"))
    saved = content(tmp_path / "run.pt")
    assert {"model", "optimizer", "scheduler", "scaler"} == saved["parts"].keys()
    assert {"python", "torch", "cuda"} == saved["random"].keys()
    assert {"step": 3, "applied": 3, "batches": 3} == saved["progress"]
    assert {torch.float32} == {weight.dtype for weight in saved["parts"]["model"].values()}
    assert 65536.0 == saved["parts"]["scaler"]["scale"]


def test_only_its_owner_can_read_a_checkpoint_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        checkpoint.write(tmp_path / "run.pt", {})
    finally:
        os.umask(before)
    assert 0o600 == stat.S_IMODE((tmp_path / "run.pt").stat().st_mode)


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write(tmp_path / "run.pt", {"step": 1})

    def full_disk(state: Any, file: Any) -> None:
        file.write(b"half of")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path / "run.pt", {"step": 2})
    assert {"step": 1} == content(tmp_path / "run.pt")
    assert ["run.pt"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "new" / "run.pt", {})
    assert (tmp_path / "new" / "run.pt").is_file()


def test_a_run_by_another_recipe_is_not_resumed(
    tmp_path: Path, tiny: Trains, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run.pt")
    tiny("--steps", "2", "--checkpoint", path)
    with pytest.raises(SystemExit) as refused:
        tiny("--steps", "4", "--checkpoint", path, "--resume", "--precision", "bf16")
    assert f"{path} was made with --precision fp16, not bf16; use --precision fp16" in str(refused.value)
    with pytest.raises(SystemExit) as refused:
        tiny("--steps", "4", "--checkpoint", path, "--resume", "--arch", "cnn")
    assert f"{path} was made with --arch gpt, not cnn; use --arch gpt" in str(refused.value)


def test_a_finished_run_that_is_resumed_says_so(tmp_path: Path, tiny: Trains) -> None:
    path = str(tmp_path / "run.pt")
    tiny("--steps", "2", "--checkpoint", path)
    with pytest.raises(SystemExit) as refused:
        tiny("--steps", "2", "--checkpoint", path, "--resume")
    assert f"{path} is at step 2 of 2 already; raise --steps to go on." in str(refused.value)


def test_a_finished_run_can_be_made_longer(tmp_path: Path, tiny: Trains) -> None:
    path = str(tmp_path / "run.pt")
    tiny("--steps", "2", "--checkpoint", path)
    assert 5 == tiny("--steps", "5", "--checkpoint", path, "--resume").steps
