"""The recorder of public programs notes what a program does, and planted faults are planted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.public import checking
from bench.public.program import HIGH_RATE, NAN_WEIGHT, NO_RESET, Program
from bench.public.runner import Outcome, run

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    for _ in range(2):
        loss = model(torch.randn(8, 4)).square().mean() / 2
        loss.backward()
    optimizer.step()
print("done", float(loss))
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with a repository of a program."""
    clone = tmp_path / "sources" / "owner+name"
    clone.mkdir(parents=True)
    (clone / "train.py").write_text(PROGRAM)
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", "-C", str(clone), *arguments], check=True)
    return tmp_path / "sources"


def outcome(sources: Path, **more: object) -> Outcome:
    program = Program("small", "owner/name", "HEAD", "train.py", "test", **more)  # type: ignore[arg-type]
    (found,) = run(program, sources)
    return found


def test_a_healthy_program_is_unchanged_and_its_report_true(sources: Path) -> None:
    found = outcome(sources, faults=(NAN_WEIGHT, HIGH_RATE, NO_RESET))
    assert [] == checking.changed(found) == checking.not_repeatable(found)
    assert [] == checking.wrong(found)
    assert found.report is not None
    assert [] == found.report["findings"]
    assert {"train.py:10": [2] * 40} == {place: list(map(len, steps)) for place, steps in found.truth["losses"].items()}
    named = {fault.name: checking.is_named(found, fault) for fault in found.broken}
    assert {"nan-weight": True, "high-rate": True, "no-reset": True} == named


def test_a_report_of_other_numbers_is_wrong(sources: Path) -> None:
    found = outcome(sources, faults=())
    found.truth["steps"] += 1
    found.truth["losses"]["train.py:10"][0] = [7.0, 7.0]
    found.truth["dtypes"] = ["bfloat16"]
    assert ["40 applied", "first loss", "the program enables"] == [
        next(begin for begin in ("40 applied", "first loss", "the program enables") if wrong.startswith(begin))
        for wrong in checking.wrong(found)
    ]


def test_a_finding_needs_the_same_in_the_record(sources: Path) -> None:
    cast = "with torch.autocast('cpu', torch.bfloat16):\n            "
    loss = "loss = model(torch.randn(8, 4)).log_softmax(1)[:, 0].neg().mean() / 2"
    sizes = (("train.py", "loss = model(torch.randn(8, 4)).square().mean() / 2", cast + loss),)
    found = outcome(sources, sizes=sizes, precisions={"bf16": ()}, faults=(NO_RESET,))
    assert found.report is not None
    assert ["loss-in-half"] == [finding["verdict"] for finding in found.report["findings"]]
    assert [] == checking.unconfirmed(found)
    assert checking.is_named(found, NO_RESET)
    found.truth["loss_dtypes"] = ["float32"]
    assert ["loss-in-half"] == checking.unconfirmed(found)


def test_numbers_are_made_smaller_and_other_texts_are_an_error(sources: Path) -> None:
    small = outcome(sources, sizes=(("train.py", "range(40)", "range(20)"),), faults=())
    assert 20 == small.truth["steps"]
    assert "does not contain" in outcome(sources, sizes=(("train.py", "range(41)", "range(20)"),)).missing


def test_what_is_missing_is_told(sources: Path) -> None:
    assert "not installed: no_such_module" == outcome(sources, modules=("no_such_module",)).missing
    (absent,) = run(Program("absent", "owner/name", "0" * 40, "train.py", "test"), sources)
    assert "git archive" in absent.missing


def test_the_recorder_notes_skipped_steps_and_unscaled_losses(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        PROGRAM.replace("loss.backward()", "scaler.scale(loss).backward()")
        .replace("/ 2", "* 50")
        .replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
        .replace("for step in", 'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)\nfor step in')
    )
    site = Path(__file__).parents[3] / "bench" / "public" / "site"
    variables = {"PYTHONPATH": str(site), "PUBLIC_TRUTH": str(tmp_path / "truth.json"), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=variables, check=True, capture_output=True)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["skipped"] > 0
    assert 40 == truth["steps"] + truth["skipped"]
    assert all(loss < 1000 for steps in truth["losses"].values() for losses in steps for loss in losses)
