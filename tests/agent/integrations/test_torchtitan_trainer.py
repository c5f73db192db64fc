"""The logger with the Trainer of torchtitan itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.agent.integrations import torchtitan_on_cpu
from tests.agent.integrations.trained import Recorded
from tests.house.tree import ROOT
from tests.parts import library

library("torchtitan")

pytestmark = pytest.mark.long

PROGRAM = """
import sys, torch
from tests.agent.integrations.torchtitan_on_cpu import main
torch.set_num_threads(1)
main(*sys.argv[1:])
"""


def trained(folder: Path, runs: str, bad_step: str = "-") -> str:
    """Trains in this folder; returns the digest of the weights."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    done = forked.run(
        [sys.executable, str(folder / "train.py"), runs, bad_step],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=240,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    return str(done.stdout).rpartition("weights ")[2]


def test_a_training_is_the_same_and_recorded_with_what_the_trainer_knows(tmp_path: Path) -> None:
    assert trained(tmp_path / "bare", "-") == trained(tmp_path / "watched", str(tmp_path / "runs"))
    recorded = Recorded(tmp_path / "runs")
    steps = torchtitan_on_cpu.STEPS
    assert list(range(steps)) == recorded.rows.steps.tolist()
    assert {1.0} == set(recorded.logged("applied").values())
    losses = [name for name in recorded.rows.schema.scalars if name.startswith("loss@trainer.py")]
    assert [steps] == [len(recorded.logged(name)) for name in losses]
    assert {0, 7} == recorded.logged("val_loss").keys()
    assert {0: 1.0, 3: 4.0, 7: 8.0, 11: 12.0} == recorded.logged("reported_step")
    names = ("name", "resumed_at_step")
    assert ["torchtitan", 0] == [recorded.settings[name] for name in names]
    assert steps == recorded.settings["training"]["steps"]
    assert {} == recorded.findings()


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    trained(tmp_path / "watched", str(tmp_path / "runs"), "6")
    assert 5 == Recorded(tmp_path / "runs").findings()["nonfinite-weights"].first_step
