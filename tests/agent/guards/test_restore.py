"""The program's own checkpoints are read back in another process, and what comes of it is told."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import guards
from ammeter.guards import restore_check, restore_process
from ammeter.guards.restore_process import RestoreProcess
from ammeter.inspection.inspected import DISTRIBUTED
from ammeter.inspection.place import Place
from ammeter.report import command, diagnosis
from tests import forked
from tests.agent.guarded import Outcome, poison, train
from tests.agent.guards.restoring import run, saving, verified, whole

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, list[dict[str, Any]]]:
    """The folder of a run whose checkpoint a new interpreter reads back, its outcome and its events."""
    folder = tmp_path_factory.mktemp("restored")
    return folder, *run(folder / "runs", saving(folder / "STEP.pt", whole))


@pytest.fixture
def _forked_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads in a fork of a process that has imported torch."""
    monkeypatch.setattr(restore_process, "subprocess", forked.as_module())


def test_a_whole_checkpoint_passes_and_is_counted_in_the_report(
    restored: tuple[Path, Outcome, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, outcome, actions = restored
    assert [("passed", str(folder / "4.pt"), 4)] == [
        (data["outcome"], data["path"], data["saved_step"]) for data in actions
    ]
    assert actions[0]["seconds"] > 0
    summary = diagnosis.diagnose(folder / "runs" / outcome.run).as_json()["summary"]
    assert {"passed": 1} == summary["checkpoint_restores"]
    command.main([str(folder / "runs" / outcome.run)])
    assert "1 of 1 checkpoint that were read back are complete" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("_forked_reader")
def test_stop_goes_back_to_one_that_was_read_back(tmp_path: Path) -> None:
    """The newest holds a NaN, which nobody saw in memory; the one before it is whole."""
    spoil = poison(40)

    def what(net: Any, optimizer: Any, scaler: Any) -> dict[str, Any]:
        state = whole(net, optimizer, scaler)
        if len(list(tmp_path.glob("*.pt"))) == 1:
            state["model"] = {name: tensor.clone() for name, tensor in state["model"].items()}
            state["model"]["last.bias"][0] = math.nan
        return state

    save = saving(tmp_path / "STEP.pt", what, at=(4, 24))

    def before(*args: Any) -> None:
        spoil(*args)
        save(*args)

    outcome, actions = run(tmp_path / "runs", before, steps=60, others=[guards.Stop()])
    assert ["passed", "failed"] == [data["outcome"] for data in actions]
    assert "1 of" in actions[1]["reason"]
    assert "model.last.bias first" in actions[1]["reason"]
    assert isinstance(outcome.raised, ammeter.Stopped)
    assert str(tmp_path / "4.pt") == outcome.raised.checkpoint


def test_nothing_is_read_unless_it_was_asked_for(tmp_path: Path) -> None:
    before = saving(tmp_path / "STEP.pt", whole)
    outcome = train(tmp_path / "runs", [guards.Checkpoint()], before=before)
    assert [] == verified(outcome, tmp_path / "runs")


def test_reading_back_changes_no_bit_of_the_run(
    restored: tuple[Path, Outcome, list[dict[str, Any]]], tmp_path: Path
) -> None:
    bare = train(None, before=saving(tmp_path / "bare-STEP.pt", whole), steps=30)
    assert bare.state == restored[1].state


def test_a_process_that_is_not_done_does_not_outlive_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def noting(*args: Any, **options: Any) -> Any:
        started.append(original(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noting)
    save = saving(tmp_path / "STEP.pt", whole)

    def before(*args: Any) -> None:
        save(*args)
        time.sleep(0.01)

    run(tmp_path / "runs", before, patient=False)
    readers = [process for process in started if "ammeter.guards.restore_check" in process.args]  # type: ignore[operator]
    assert 1 == len(readers)
    assert readers[0].poll() is not None


def read(path: Path) -> dict[str, Any]:
    """What the process says of a file."""
    ran = forked.run(
        [sys.executable, "-m", "ammeter.guards.restore_check", str(path)], capture_output=True, timeout=120
    )
    assert 0 == ran.returncode, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def test_a_file_is_read_as_it_lies_there(tmp_path: Path) -> None:
    good, old, cut, bad = (tmp_path / name for name in ("good.pt", "old.pt", "cut.pt", "bad.pt"))
    torch.save({"a": torch.ones(3), "step": 3}, good)
    torch.save({"a": torch.ones(3)}, old, _use_new_zipfile_serialization=False)
    cut.write_bytes(good.read_bytes()[:-200])
    torch.save({"a": {"b": torch.tensor([1.0, math.inf])}}, bad)
    assert ("passed", 1) == (read(good)["outcome"], read(good)["tensors"])
    assert "passed" == read(old)["outcome"]
    assert "failed" == read(cut)["outcome"]
    assert ("failed", "1 of 1 tensors are not finite, a.b first") == (read(bad)["outcome"], read(bad)["reason"])
    assert "skipped" == read(tmp_path / "gone.pt")["outcome"]


class Program:
    """Something that weights_only=True does not load."""


def test_a_file_that_holds_a_program_is_not_run(tmp_path: Path) -> None:
    torch.save({"model": Program()}, tmp_path / "it.pt")
    result = restore_check.restore(Place(str(tmp_path / "it.pt")))
    assert "failed" == result["outcome"]
    assert "weights_only=True does not load it" in result["reason"]


SAVED: dict[str, Any] = {
    "bytes": 9,
    "contents": {"weights": {"float32": 4}, "optimizer": True, "scaler": True},
    "missing": [],
}
READ: dict[str, Any] = {"outcome": "passed", "reason": "", "bytes": 9, "contents": SAVED["contents"]}


def contents(**weights: int) -> dict[str, Any]:
    return {**SAVED["contents"], "weights": weights}


@pytest.mark.parametrize(
    ("saved", "found", "outcome", "reason"),
    [
        ({}, {}, "passed", ""),
        ({"missing": ["optimizer"]}, {}, "partial", "lacks optimizer"),
        ({}, {"bytes": 8}, "skipped", "replaced before it was read"),
        (
            {},
            {"contents": contents(float32=3)},
            "failed",
            "weights differ from the saved ones",
        ),
        ({}, {"contents": {**SAVED["contents"], "scaler": False}}, "failed", "the saved scaler was not read back"),
        ({}, {"format": DISTRIBUTED, "bytes": 8, "contents": contents(float32=8)}, "passed", ""),
        ({}, {"format": DISTRIBUTED, "contents": contents(float32=3)}, "failed", "weights differ from the saved ones"),
        ({}, {"absent": "1 of 4 trained tensors, a first"}, "partial", "lacks 1 of 4 trained tensors, a first"),
        ({}, {"outcome": "failed", "reason": "broken"}, "failed", "broken"),
    ],
)
def test_what_was_read_is_held_against_what_was_saved(
    saved: dict[str, Any], found: dict[str, Any], outcome: str, reason: str
) -> None:
    result = restore_check.compare({**READ, **found}, {**SAVED, **saved})
    assert outcome == result["outcome"]
    assert reason in result["reason"]


@pytest.mark.usefixtures("_forked_reader")
def test_of_several_the_newest_is_read_next(tmp_path: Path) -> None:
    done: list[str] = []
    process = RestoreProcess(lambda saved, told: done.append(f"{Path(saved['path']).name} {told['outcome']}"))
    for name in ("a.pt", "b.pt", "c.pt"):
        torch.save({"a": torch.ones(2)}, tmp_path / name)
        process.read({"path": str(tmp_path / name)})
    deadline = time.monotonic() + 90
    while len(done) < 2 and time.monotonic() < deadline:
        process.poll()
        time.sleep(0.05)
    process.stop()
    assert ["a.pt passed", "c.pt passed"] == done
