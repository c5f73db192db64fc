"""Watching beside the patches and the copies of a program."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.torch_hooks import patch
from tests.agent.recording.programs.loops import amp_step, eight_steps, same_rows, train


def test_a_patch_that_was_there_before_is_called_and_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = torch.amp.GradScaler.step, []

    def patched(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(optimizer)
        return original(self, optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.amp.GradScaler, "step", patched)
    rows = same_rows(tmp_path, eight_steps)
    assert 2.0 == rows.scalar("skipped").sum()
    assert 16 == len(calls)
    assert patched is vars(torch.amp.GradScaler)["step"]


def test_a_patch_that_came_later_and_went_first_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with monkeypatch.context() as during:
            ours = torch.amp.GradScaler.step
            during.setattr(torch.amp.GradScaler, "step", lambda *args, **kwargs: ours(*args, **kwargs))
            eight_steps(model, optimizer, scaler)
        amp_step(model, optimizer, scaler)

    before = vars(torch.amp.GradScaler)["step"]
    assert 9 == len(same_rows(tmp_path, loop))
    assert before is vars(torch.amp.GradScaler)["step"]


def test_a_patch_of_one_scaler_alone_is_heard_through(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        inner, calls = scaler.step, list[int]()

        def step(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return inner(*args, **kwargs)

        scaler.step = step
        eight_steps(model, optimizer, scaler)
        assert 8 == len(calls)

    assert 2.0 == same_rows(tmp_path, loop).scalar("skipped").sum()


def test_copies_made_while_watching_are_whole_and_their_own(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        amp_step(model, optimizer, scaler)
        assert scaler.state_dict() == pickle.loads(pickle.dumps(scaler)).state_dict()
        twin = copy.deepcopy({"model": model, "optimizer": optimizer, "scaler": scaler})
        assert (
            optimizer.state_dict()["param_groups"] == pickle.loads(pickle.dumps(optimizer)).state_dict()["param_groups"]
        )
        before = [parameter.tolist() for parameter in model.parameters()]
        assert before == [parameter.tolist() for parameter in twin["model"].parameters()]
        for _ in range(3):
            amp_step(twin["model"], twin["optimizer"], twin["scaler"], float("inf"))
        assert before == [parameter.tolist() for parameter in model.parameters()]
        assert (64.0, 8.0) == (scaler.get_scale(), twin["scaler"].get_scale())
        amp_step(model, optimizer, scaler)

    rows = same_rows(tmp_path, loop)
    assert [64.0, 64.0] == rows.scalar("scale").tolist()
    assert [] == patch.attached()


def test_what_was_saved_while_watching_loads_where_ammeter_is_not_installed(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        amp_step(model, optimizer, scaler)
        whole = {"model": model, "optimizer": optimizer, "scaler": scaler, "step": torch.amp.GradScaler.step}
        buffer = io.BytesIO()
        torch.save(whole, buffer)
        (tmp_path / "checkpoint").write_bytes(buffer.getvalue())

    train(tmp_path / "journal", loop)
    program = (
        "import sys; sys.modules['ammeter'] = None\n"
        "import torch; found = torch.load(sys.argv[1], weights_only=False)\n"
        "print(found['scaler'].get_scale(), found['step'] is torch.amp.GradScaler.step)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "checkpoint"], capture_output=True, text=True, timeout=60
    )
    assert ("64.0 True\n", "") == (done.stdout, done.stderr)
