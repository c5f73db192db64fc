"""Two ranks train apart: the report and the collector say so, in the same words."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ranks
from tests.e2e.processes import Collector, wait_for
from tests.e2e.reference import ROOT, reported

pytestmark = pytest.mark.long

NAMES = {"ranks-disagree", "half-reduction", "broken-in-reduction"}
Output = pytest.CaptureFixture[str]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server").start()
    yield started
    started.stop()


def train(folder: Path, collector: Collector, *words: str) -> str:
    """Trains with two ranks, and returns the run."""
    command = [sys.executable, "trainer/broken.py", "--tiny", "--steps", "40", "--eval-every", "1000", *words]
    settings = {"AMMETER_URL": collector.url, "AMMETER_DIR": str(folder / "runs")}
    ranks.run(command, 2, cwd=ROOT, env={**os.environ, **settings}, timeout=120)
    (run,) = (folder / "runs").iterdir()
    return run.name


def ended_runs(collector: Collector) -> set[str]:
    return {run["id"] for run in collector.ask("/api/v1/runs?state=ended")["items"]}


def ended(collector: Collector, run: str) -> list[Any]:
    """The run's incidents, once it is over.

    Without those of a rank that was judged before the other's rows arrived, and that the whole then explained.
    """
    wait_for(lambda: run in ended_runs(collector), "the run has ended", collector.log)
    items: list[Any] = collector.ask(f"/api/v1/runs/{run}/incidents")["items"]
    return [incident for incident in items if incident["closed_reason"] != "superseded"]


def test_a_rank_that_skips_alone_is_the_one_finding_and_the_one_incident(
    collector: Collector, tmp_path: Path, capsys: Output
) -> None:
    run = train(tmp_path, collector, "--fault", "ranks-disagree")
    (incident,) = ended(collector, run)
    code, report = reported(tmp_path / "runs", capsys)
    (finding,) = report["findings"]
    assert (3, "ranks-disagree", [1], 20) == (code, finding["verdict"], finding["ranks"], finding["first_step"])
    same = ("verdict", "severity", "title", "cause", "fix", "first_step", "opened_step", "last_step", "evidence")
    assert {name: finding[name] for name in same} == {name: incident[name] for name in same}
    assert json.dumps(finding["consequences"]) == json.dumps(incident["consequences"])
    assert 1 == incident["rank"]


def test_ranks_that_reduce_in_bfloat16_are_the_one_finding_and_the_one_incident(
    collector: Collector, tmp_path: Path, capsys: Output
) -> None:
    run = train(tmp_path, collector, "--fault", "half-reduction")
    (incident,) = ended(collector, run)
    code, report = reported(tmp_path / "runs", capsys)
    (finding,) = report["findings"]
    assert (0, "half-reduction", [0, 1], 20) == (code, finding["verdict"], finding["ranks"], finding["first_step"])
    assert (finding["cause"], finding["evidence"]) == (incident["cause"], incident["evidence"])


def test_gradients_that_break_in_their_sum_are_the_one_finding_and_the_one_incident(
    collector: Collector, tmp_path: Path, capsys: Output
) -> None:
    run = train(tmp_path, collector, "--fault", "broken-in-reduction", "--precision", "fp16")
    (incident,) = ended(collector, run)
    code, report = reported(tmp_path / "runs", capsys)
    (finding,) = report["findings"]
    assert (3, "broken-in-reduction", [0, 1]) == (code, finding["verdict"], finding["ranks"])
    assert "They are summed in float32, which ends at 3.4028e+38" in finding["cause"]
    assert (finding["cause"], finding["evidence"]) == (incident["cause"], incident["evidence"])


def test_ranks_that_agree_are_silent(collector: Collector, tmp_path: Path, capsys: Output) -> None:
    run = train(tmp_path, collector, "--precision", "fp16")
    assert [] == ended(collector, run)
    assert [] == reported(tmp_path / "runs", capsys)[1]["findings"]
