"""The program: limits, options, and the zoo at its smallest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common import readme
from bench.common.paths import ROOT
from bench.zoo import __main__ as zoo
from bench.zoo import plan
from bench.zoo.detectors import ANOMALY
from bench.zoo.plan import Plan
from bench.zoo.report import Results
from tests.bench.zoo.scores import GOOD, finding, results_of, score_fault, sound


def test_each_limit_applies_to_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [score_fault(*GOOD)] * 20
    misnamed, unlocated = score_fault(finding("lost-updates")), score_fault(finding("scale-collapse"))
    cases = {
        "": results_of(good, [sound()] * 50),
        "broken runs in which something is found": results_of([*good * 2, score_fault()], [sound()]),
        "broken runs whose fault is named first": results_of([*good, *[misnamed] * 2], [sound()]),
        "broken parts or lines that are named": results_of([*good, *[unlocated] * 3], [sound()]),
        "verdicts that are reached in time": results_of([*good, score_fault(finding("scale-collapse", 90))], [sound()]),
        "healthy runs without a page": results_of(good, [*[sound()] * 90, sound(pages=("run-lost",))]),
        "healthy runs without a ticket": results_of(good, [*[sound()] * 90, *[sound("sdpa-math")] * 2]),
    }
    for missed, results in cases.items():
        monkeypatch.setattr(zoo, "measure", lambda *_, results=results: results)
        assert ([missed] if missed else []) == [limit.name for limit in results.limits if not limit.is_met][:1]
        assert bool(missed) == zoo.main([])


def test_the_seeds_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    def measure(plan: Plan, *_: object) -> Results:
        plans.append(plan)
        return results_of([], [])

    monkeypatch.setattr(zoo, "measure", measure)
    for words in ([], ["--seeds", "8", "6", "8"], ["--seeds", "8", "6", "--quick"]):
        zoo.main(words)
    assert [(0, 1, 2), (8, 6), (8,)] == [plan.seeds for plan in plans]
    assert {8, 6} == {case.seed for case in Plan(seeds=plans[1].seeds, only=["scale"]).cases()}


def test_quick_numbers_do_not_replace_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zoo.main(["--quick", "--write"])
    assert "name another folder" in capsys.readouterr().err


def test_the_smallest_zoo_finds_a_fault_and_leaves_a_healthy_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--only", "nonfinite-gradient,fused", "--write", str(tmp_path)]
    words += ["--go-on", str(tmp_path / "kept")]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.zoo", *words], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    document = json.loads((tmp_path / "zoo.json").read_text())
    assert {("nonfinite-gradient", True)} == {(case["first"], case["culprit"]) for case in document["broken"]}
    assert plan.archs() == [case["case"]["arch"] for case in document["broken"]]
    assert {"", "a fused optimizer"} == {case["case"].get("what", "") for case in document["healthy"]}
    assert all([] == case["pages"] + case["tickets"] for case in document["healthy"])
    assert "| ammeter | 2 of 2 (100.0 %) |" in readme.table(tmp_path / "zoo.md")
    assert ANOMALY in {detector for case in document["broken"] for detector in case["others"]}
    assert 0 == zoo.main(words)  # goes on where nothing is left to train
    assert "seed 0:" not in capsys.readouterr().out
