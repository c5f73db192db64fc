"""Faults of the run as a whole, trained for real: its checkpoints, where it stands still, gradients that jump."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from tests import forked
from tests.e2e.reference import ROOT, reported, train

pytestmark = pytest.mark.long

NAMES = {"checkpoint-exposed", "checkpoint-incomplete", "gradient-spike", "resume-mismatch", "run-stalled"}
NAMES |= {"checkpoint-stale", "sign-flip", "stagnation"}
Output = pytest.CaptureFixture[str]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def only_finding(folder: Path, output: Output) -> dict[str, Any]:
    _, report = reported(folder, output)
    (finding,) = report["findings"]
    assert isinstance(finding, dict)
    return finding


def test_a_checkpoint_that_all_can_replace_is_the_one_finding(public: Path, tmp_path: Path, capsys: Output) -> None:
    path = public / "kept" / "run.pt"
    train(tmp_path, "--fault", "checkpoint-exposed", "--checkpoint", str(path), "--checkpoint-every", "20")
    finding = only_finding(tmp_path, capsys)
    assert ("checkpoint-exposed", "ticket", 20) == tuple(
        finding[name] for name in ("verdict", "severity", "first_step")
    )
    assert f"cd {path.parent} && chmod 0700 . && chmod 0600 {path.name}" in finding["fix"]


def test_a_checkpoint_of_weights_alone_is_the_one_finding(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "kept" / "run.pt"
    words = ("--checkpoint", str(path), "--checkpoint-every", "10")
    train(tmp_path / "runs", "--fault", "checkpoint-incomplete", *words)
    finding = only_finding(tmp_path / "runs", capsys)
    assert ("checkpoint-incomplete", "ticket", 10) == tuple(
        finding[name] for name in ("verdict", "severity", "first_step")
    )
    assert ["optimizer", "scaler"] == finding["evidence"]["missing"]
    train(tmp_path / "healthy", *words)
    assert [] == reported(tmp_path / "healthy", capsys)[1]["findings"]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_gradients_that_jump_are_the_one_finding(
    precision: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMMETER_BUDGET", "1")  # else the norms of such short steps are read in every tenth or so
    train(tmp_path, "--fault", "gradient-spike", "--steps", "120", "--precision", precision)
    finding = only_finding(tmp_path, capsys)
    assert ("gradient-spike", "ticket") == (finding["verdict"], finding["severity"])
    assert 80 <= finding["first_step"] <= 82
    train(tmp_path / "healthy", "--steps", "120", "--precision", precision)
    assert [] == reported(tmp_path / "healthy", capsys)[1]["findings"]


def test_a_run_that_stands_still_is_the_one_finding(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "trainer/broken.py", "--tiny", "--steps", "60", "--fault", "run-stalled"]
    environment = {**os.environ, "AMMETER_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with forked.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            wait_for_steps(tmp_path, 20)  # the last rows, up to 0.1 s of them, may still be in memory
            assert [] == reported(tmp_path, capsys)[1]["findings"]
            later = time.time_ns() + 20 * 60 * 10**9
            monkeypatch.setattr("time.time_ns", lambda: later)
            finding = only_finding(tmp_path, capsys)
        finally:
            run.kill()
    assert ("run-stalled", "ticket") == (finding["verdict"], finding["severity"])
    assert 20 <= finding["first_step"] <= 39
    assert f"py-spy dump --pid {run.pid}" in finding["fix"]


def wait_for_steps(folder: Path, steps: int) -> None:
    """Until the rows of so many steps can be read."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        streams = journal.streams(next(folder.iterdir())) if any(folder.iterdir()) else []
        frames = [entry.frame for stream in streams for entry in journal.read(stream)]
        if any(getattr(frame, "step", 0) >= steps for frame in frames):
            return
        time.sleep(0.1)
    raise AssertionError(f"no step {steps} within a minute")


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_run_that_goes_on_without_its_optimizer_is_the_one_finding(
    precision: str, tmp_path: Path, capsys: Output
) -> None:
    words = ("--precision", precision, "--checkpoint", str(tmp_path / "kept" / "run.pt"), "--checkpoint-every", "30")
    train(tmp_path / "first", *words)
    for fault, folder in ((("--fault", "resume-mismatch"), "second"), ((), "third")):
        shutil.copytree(tmp_path / "kept", tmp_path / "before", dirs_exist_ok=True)
        train(tmp_path / folder, *words, "--resume", "--steps", "100", *fault)
        shutil.copytree(tmp_path / "before", tmp_path / "kept", dirs_exist_ok=True)
    finding = only_finding(tmp_path / "second", capsys)
    assert ("resume-mismatch", "ticket", 0) == tuple(finding[name] for name in ("verdict", "severity", "first_step"))
    for healthy in ("first", "third"):
        assert [] == reported(tmp_path / healthy, capsys)[1]["findings"]


def test_checkpoints_that_are_kept_no_more_are_the_one_finding(tmp_path: Path, capsys: Output) -> None:
    words = ("--checkpoint", str(tmp_path / "kept" / "run.pt"), "--checkpoint-every", "20", "--steps", "200")
    train(tmp_path / "runs", "--fault", "checkpoint-stale", *words)
    finding = only_finding(tmp_path / "runs", capsys)
    assert ("checkpoint-stale", "ticket", 20) == tuple(finding[name] for name in ("verdict", "severity", "first_step"))
    assert str(tmp_path / "kept") in finding["evidence"]["last_checkpoint"]


def test_gradients_that_turn_round_are_the_one_finding(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMMETER_BUDGET", "1")  # else they are compared too rarely for sixty readings in so few steps
    train(tmp_path, "--fault", "sign-flip", "--steps", "260", "--batch", "64", "--precision", "bf16")
    finding = only_finding(tmp_path, capsys)
    assert "sign-flip" == finding["verdict"]
    assert 100 <= finding["first_step"] <= 140


def test_a_run_that_learns_nothing_is_the_one_finding(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMMETER_BUDGET", "0.5")
    train(tmp_path, "--fault", "stagnation", "--steps", "240")
    finding = only_finding(tmp_path, capsys)
    assert ("stagnation", "ticket", 31) == tuple(finding[name] for name in ("verdict", "severity", "first_step"))
    assert "Raise the learning rate, about " in finding["fix"]
