"""The example's job in a real Slurm: requeued, it is one run with two attempts; cancelled, it stays away."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter.report.diagnosis import diagnose
from tests.e2e.processes import Collector, wait_for
from tests.e2e.slurm import Slurm
from tests.house import tree

pytestmark = pytest.mark.long

JOB = tree.ROOT / "examples" / "slurm" / "train.sbatch"

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
done, saved = 0, Path("last.pt")
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
while done < 40 or not Path("enough").exists():
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
    done += 1
    if done % 10 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
        torch.save(state, "next.pt")
        os.replace("next.pt", saved)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    cluster = Slurm()
    yield cluster
    cluster.stop()


class Job:
    """A job of the example, in a folder of its own, with `ammeter` on PATH."""

    def __init__(self, slurm: Slurm, folder: Path, **environment: str) -> None:
        self.slurm, self.folder, self.saved = slurm, folder, folder / "last.pt"
        (folder / "train.py").write_text(SCRIPT)
        (folder / "bin").mkdir()
        (folder / "bin" / "ammeter").write_text(f'#!/bin/sh\nexec {sys.executable} -m ammeter "$@"\n')
        (folder / "bin" / "ammeter").chmod(0o755)
        settings = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "AMMETER_DIR": str(folder / "runs"), **environment}
        words = [f"--output={folder}/output", str(JOB), sys.executable, "train.py"]
        self.id = slurm.submit(*words, folder=folder, PYTHONPATH=str(tree.ROOT), **settings)
        self.wait_for(self.saved.exists, "the training has saved")

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        wait_for(condition, what, lambda: (self.folder / "output").read_text() + self.slurm.log())

    def is_requeued(self) -> bool:
        return "Restarts=1" in self.slurm.call("scontrol", "show", "job", "-o", self.id)

    def train_on(self) -> None:
        """Waits until a later attempt has saved, and lets the training end."""
        before = self.saved.stat().st_mtime_ns
        self.wait_for(lambda: self.slurm.state(self.id) == "RUNNING", "the job runs again")
        self.wait_for(lambda: self.saved.stat().st_mtime_ns > before, "the training has saved again")
        (self.folder / "enough").touch()
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        self.wait_for(
            lambda: self.slurm.state(self.id) not in ("RUNNING", "PENDING", "COMPLETING"), "the job has ended"
        )

    def report(self) -> dict[str, Any]:
        """The report on the only run."""
        (run,) = (path for path in (self.folder / "runs").iterdir() if path.is_dir())
        return diagnose(run).as_json()


def requeue_as_before_the_time_limit(job: Job) -> None:
    """The signal of --signal=B:USR1@60, which Slurm sends to the batch script alone."""
    job.slurm.call("scancel", "--batch", "--signal=USR1", job.id)


def requeue_as_an_administrator(job: Job) -> None:
    job.slurm.call("scontrol", "requeue", job.id)


@pytest.mark.parametrize("requeue", [requeue_as_before_the_time_limit, requeue_as_an_administrator])
def test_a_requeued_job_is_one_run_with_two_attempts(
    requeue: Callable[[Job], None], slurm: Slurm, tmp_path: Path
) -> None:
    job = Job(slurm, tmp_path)
    requeue(job)
    job.wait_for(job.is_requeued, "the job is back in the queue")
    job.train_on()
    report = job.report()
    run = report["run"]
    assert ("train", "ended", {"slurm_job": job.id}) == (run["name"], run["state"], run["tags"])
    first, second = run["lives"]
    assert first["goodbye"].startswith("signal: SIGTERM from slurmstepd")
    assert "exit" == second["goodbye"]
    assert [] == report["findings"]


def test_a_cancelled_job_does_not_come_back(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path)
    slurm.call("scancel", job.id)
    job.wait_until_gone()
    assert not job.is_requeued()
    report = job.report()
    assert [] == report["run"]["lives"]
    assert report["run"]["goodbye"].startswith("signal: SIGTERM from slurmstepd")
    assert "Run ended by Slurm" in (tmp_path / "output").read_text()


def test_the_collector_has_one_run_from_both_attempts_with_the_token_in_a_file(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{'t' * 32}\n")
    (tmp_path / "server").mkdir()
    monkeypatch.setenv("AMMETER_SERVER_TOKEN_FILE", str(token))
    collector = Collector(tmp_path / "server", token="t" * 32).start()
    try:
        job = Job(
            slurm, tmp_path, AMMETER_URL=collector.url, AMMETER_TOKEN_FILE=str(token), AMMETER_SERVER_TOKEN_FILE=""
        )
        requeue_as_before_the_time_limit(job)
        job.wait_for(job.is_requeued, "the job is back in the queue")
        job.train_on()
        job.wait_for(lambda: collector.ask("/api/v1/runs")["items"][0]["state"] == "ended", "the run has ended")
        (run,) = collector.ask("/api/v1/runs")["items"]
        assert 2 == len(collector.ask(f"/api/v1/runs/{run['id']}")["lives"])
    finally:
        collector.stop()
