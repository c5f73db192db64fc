"""A run that names its baseline, with a real agent and collector: found live and by the report, in one wording."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.e2e.processes import Collector, wait_for
from tests.e2e.reference import reported

PROGRAM = """
import sys
import torch, ammeter
name, spoil, tags = sys.argv[1], float(sys.argv[2]), dict([sys.argv[3].split("=")] if sys.argv[3:] else [])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = ammeter.watch(model, optimizer, name=name, project="tests", config={"seed": 0, "lr": 0.01}, tags=tags)
print(run.id, flush=True)
for step in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean() * (1 + spoil * (step > 30))
    loss.backward()
    optimizer.step()
    run.log(loss=loss)
    if step % 10 == 9:
        run.log(val_loss=1 + spoil * (step > 30))
run.close()
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server").start()
    yield started
    started.stop()


def train(folder: Path, collector: Collector, *words: str) -> str:
    """Trains, and returns the run once the collector knows that it is over."""
    (folder / "program.py").write_text(PROGRAM)
    settings = {"AMMETER_DIR": str(folder / "runs"), "AMMETER_URL": collector.url, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "program.py"), *words]
    ran = forked.run(command, env={**os.environ, **settings}, capture_output=True, timeout=120)
    assert 0 == ran.returncode, ran.stderr
    run = ran.stdout.strip()
    wait_for(lambda: collector.ask(f"/api/v1/runs/{run}")["state"] == "ended", "the run has ended", collector.log)
    return run


def test_what_is_found_beside_the_baseline_is_the_same_live_and_in_the_report(
    collector: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = train(tmp_path, collector, "monday", "0")
    run = train(tmp_path, collector, "tuesday", "0.2", "baseline=monday")

    def incidents() -> dict[str, Any]:
        items = collector.ask(f"/api/v1/runs/{run}/incidents")["items"]
        return {incident["verdict"]: incident for incident in items}

    expected = {"validation-drift", "not-reproducible"}
    wait_for(lambda: expected <= set(incidents()), "the run is compared", collector.log)
    findings = {finding["verdict"]: finding for finding in reported(tmp_path / "runs" / run, capsys)[1]["findings"]}
    same = ("severity", "title", "cause", "fix", "first_step", "opened_step", "last_step", "evidence")
    assert expected == set(findings) == set(incidents())
    for verdict, incident in incidents().items():
        assert {name: findings[verdict][name] for name in same} == {name: incident[name] for name in same}
    assert (31, 39) == (findings["not-reproducible"]["first_step"], findings["validation-drift"]["first_step"])
    beside = collector.ask(f"/api/v1/runs/{run}/compare/{base}")
    assert expected == {finding["verdict"] for finding in beside["findings"]}
    assert [9, 19, 29, 39, 49, 59] == next(curve for curve in beside["series"] if curve["name"] == "val_loss")["steps"]
