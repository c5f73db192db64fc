"""Every fault of the reference trainer, trained for real, is named by the report; healthy runs are silent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ammeter.verdicts import BY_ID
from tests import forked
from tests.e2e import test_faults_beside, test_faults_of_the_run, test_ranks
from tests.e2e.reference import ENDS, READ_OFTEN, ROOT, reported, train, train_here
from tests.house import tree

pytestmark = pytest.mark.long

MIDDLE = "blocks.1"


def faults() -> list[str]:
    """Names in the trainer's own registry."""
    listed = forked.run(
        [sys.executable, "trainer/broken.py", "--list-faults"], cwd=ROOT, capture_output=True, timeout=60
    )
    assert 0 == listed.returncode, listed.stderr
    return [line.partition("@")[0] for line in listed.stdout.splitlines() if not line.startswith(" ")]


EXPECTED: dict[str, dict[str, Any]] = {
    "overflow-storm": {"severity": "ticket"},
    "scale-collapse": {"severity": "page", "tensor": f"{MIDDLE}.attention.proj.weight", "first_step": 20},
    "nonfinite-loss": {"severity": "page", "first_step": 20, "opened_step": 20},
    "masked-labels": {"severity": "page", "first_step": 20, "opened_step": 20},
    "nonfinite-gradient": {"severity": "page", "module": f"{MIDDLE}.mlp.fc", "first_step": 20},
    "gradient-underflow": {"severity": "ticket"},
    "no-loss-scaling": {"severity": "ticket"},
    "clip-before-unscale": {"severity": "ticket"},
    "loss-not-scaled": {"severity": "ticket", "first_step": 0},
    "gradients-not-unscaled": {"severity": "page", "first_step": 20, "opened_step": 20},
    "mixed-scale-gradients": {"severity": "ticket", "first_step": 20, "opened_step": 20},
    "update-between-optimizers": {"severity": "ticket", "first_step": 0},
    "gradients-not-reset": {"severity": "page", "first_step": 21},
    "lopsided-step": {"severity": "ticket", "first_step": 30, "opened_step": 123},
    "fp32-fallback": {"severity": "ticket", "module": f"{MIDDLE}.mlp.fc"},
    "cast-churn": {"severity": "ticket"},
    "stale-stack": {"severity": "ticket", "first_step": 0},
    "nonfinite-weights": {"severity": "page", "tensor": f"{MIDDLE}.mlp.fc.weight", "first_step": 20},
    "scale-underflowed": {"severity": "page", "first_step": 20, "opened_step": 20},
    "scaler-disabled": {"severity": "ticket", "first_step": 0},
    "pointless-scaler": {"severity": "ticket", "first_step": 0},
    "scaler-not-restored": {"severity": "ticket", "first_step": 0},
    "scaler-rebuilt": {"severity": "ticket", "first_step": 20},
    "scheduler-ahead": {"severity": "ticket"},
    "half-master-weights": {"severity": "ticket", "tensor": "token.weight", "first_step": 0},
    "unsupported-op": {"severity": "ticket", "module": f"{MIDDLE}.mlp.activation"},
    "lost-updates": {"severity": "ticket"},
    "half-optimizer-state": {"severity": "ticket", "first_step": 0},
    "masked-row-nan": {"severity": "page", "module": f"{MIDDLE}.attention.softmax", "first_step": 20},
    "activation-overflow": {"severity": "page", "module": f"{MIDDLE}.mlp.activation", "first_step": 20},
    "eps-underflow": {"severity": "page", "first_step": 0},
    "agent-blind": {"severity": "ticket", "first_step": 21},
    "run-lost": {"severity": "page"},
}
WITHOUT_FP16 = {
    "pointless-scaler": "bf16",
    "half-master-weights": "bf16",
    "eps-underflow": "fp32",
    "no-gradients": "bf16",
    "loss-in-half": "bf16",
    "sensitive-op-in-half": "bf16",
}
LONGER = {"lopsided-step": "150"}
"""Steps."""

RESUMED = {"scaler-not-restored"}
LINES = {
    "clip-before-unscale": "clip_grad_norm_(",
    "loss-not-scaled": "loss.backward()",
    "gradients-not-unscaled": "optimizer.step()",
    "mixed-scale-gradients": "scaler.scale(penalty).backward()",
    "update-between-optimizers": "scaler.update()",
    "masked-labels": "self.scaler.scale(loss).backward()",
    "gradients-not-reset": "scaler.unscale_(self.optimizer)",
}
"""What stands in the line that the finding names."""

ELSEWHERE = {
    *("checkpoint-exposed", "checkpoint-incomplete", "checkpoint-stale", "gradient-spike", "resume-mismatch"),
    *("run-stalled", "sign-flip", "stagnation", "ranks-disagree", "half-reduction", "broken-in-reduction"),
    *("slower-than-fp32", "validation-drift", "not-comparable", "not-reproducible"),
}
"""Faults that other files train with."""

EXPECTED |= {
    fault: {"severity": BY_ID[fault].severity}
    for fault in sorted(tree.faults_of_the_trainer() - set(EXPECTED) - ELSEWHERE)
}

UNSCALED = ("nonfinite-loss", "masked-labels", "nonfinite-gradient")
CASES = [(fault, WITHOUT_FP16.get(fault, "fp16")) for fault in EXPECTED]
CASES += [(fault, precision) for fault in UNSCALED for precision in ("bf16", "fp32")]


@pytest.mark.parametrize(("fault", "precision"), CASES)
def test_the_fault_is_the_one_finding(
    fault: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journals = tmp_path / "journals"
    words = ["--precision", precision, "--fault", fault, "--steps", LONGER.get(fault, "60")]
    if fault in ENDS:
        assert ENDS[fault] == train(journals, *words)
    else:
        if fault in RESUMED:
            words += ["--checkpoint", str(tmp_path / "run.pt")]
            train_here(journals, *words, "--steps", "20")
            words += ["--resume"]
        train_here(journals, *words, budget="1" if fault in READ_OFTEN else "")
    code, report = reported(journals, capsys)
    (finding,) = report["findings"]
    assert fault == finding["verdict"]
    expected = EXPECTED[fault]
    assert expected == {name: finding[name] for name in expected}
    gravity = {finding["severity"], *(consequence["severity"] for consequence in finding["consequences"])}
    assert (3 if "page" in gravity else 0) == code
    if fault == "run-lost":
        assert 30 <= finding["first_step"] <= 39  # the last rows may be missing
    if fault in LINES:
        file, _, line = finding["caller"].rpartition(":")
        assert LINES[fault] in (ROOT / file).read_text().splitlines()[int(line) - 1]


def test_every_fault_of_the_trainer_is_tried() -> None:
    beside = test_faults_beside.NAMES | {test_faults_beside.SLOWER}
    assert ELSEWHERE == beside | test_faults_of_the_run.NAMES | test_ranks.NAMES
    assert set(EXPECTED) | ELSEWHERE == set(faults())


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_a_healthy_run_is_silent(precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "--precision", precision, "--accumulate", "2")
    code, report = reported(tmp_path, capsys)
    assert [] == report["findings"]
    assert 0 == code
    assert {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[precision] == report["run"]["precision"]
    assert (60, 0) == (report["summary"]["steps"], report["summary"]["skipped"])
