"""Programs of training frameworks, watched by one line, as a collector shows them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from tests import forked
from tests.e2e.processes import Collector, wait_for
from tests.house.tree import ROOT
from tests.parts import library

for name in ("transformers", "lightning.pytorch", "accelerate", "torchtitan"):
    library(name)

pytestmark = pytest.mark.long

BEGIN = """
import sys
from pathlib import Path
import torch

torch.set_num_threads(1)
integrated, bad_from = sys.argv[1] == "integrated", int(sys.argv[2]) if sys.argv[2:] else None
"""

TRAINER = """
from tests.agent.integrations.test_{name} import integration, trained

trained({folder}[integration.{kind}(project="e2e")] if integrated else [], bad_from=bad_from)
"""

TORCHTITAN = """
from tests.agent.integrations import torchtitan_on_cpu

torchtitan_on_cpu.main("runs" if integrated else "-", str(bad_from or "-"))
"""

SCALER = """
import ammeter
from ammeter.integrations import loss_scalers
from tests.agent.integrations.own_scalers import SCALERS, train, training

model, optimizer = training(SCALERS["{name}"](1024.0), bad_from)
run = ammeter.watch(model, optimizer.optimizer, project="e2e")
if integrated:
    loss_scalers.follow(run, optimizer.loss_scaler)
train(model, optimizer, 60)
run.close()
"""

PROGRAMS = {
    "huggingface": TRAINER.format(name="huggingface", folder='Path("."), ', kind="AmmeterCallback"),
    "lightning": TRAINER.format(name="lightning", folder='Path("."), ', kind="AmmeterCallback"),
    "fabric": TRAINER.format(name="fabric", folder="", kind="AmmeterCallback"),
    "accelerate": TRAINER.format(name="accelerate", folder="", kind="AmmeterTracker"),
    "torchtitan": TORCHTITAN,
    **{name: SCALER.format(name=name) for name in ("deepspeed", "megatron", "fairseq")},
}
SCALERS = ("deepspeed", "megatron", "fairseq")


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    started = Collector(tmp_path_factory.mktemp("server")).start()
    yield started
    started.stop()


def trained(name: str, folder: Path, collector: Collector, *arguments: str) -> dict[str, Any]:
    """Trains; returns the run that the collector has of it, {} if Ammeter has recorded none."""
    folder.mkdir()
    (folder / "train.py").write_text(BEGIN + PROGRAMS[name])
    runs = folder / "runs"
    environment = {"AMMETER_URL": collector.url, "AMMETER_DIR": str(runs), "PYTHONPATH": str(ROOT)}
    done = forked.run(
        [sys.executable, str(folder / "train.py"), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
    )
    assert 0 == done.returncode, done.stderr
    recorded = [path.name for path in runs.iterdir() if journal.streams(path)] if runs.exists() else []
    if not recorded:
        return {}

    def ended() -> dict[str, Any]:
        items = collector.ask("/api/v1/runs")["items"]
        return next((run for run in items if [run["id"]] == recorded and run["state"] == "ended"), {})

    run: dict[str, Any] = wait_for(ended, f"the run of {name} has ended", collector.log)
    return run


def findings(collector: Collector, run: dict[str, Any]) -> set[str]:
    """The verdicts of the incidents of a run, and of their consequences."""
    items = collector.ask(f"/api/v1/runs/{run['id']}/incidents")["items"]
    return {finding["verdict"] for item in items for finding in (item, *item["consequences"])}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planted_fault_is_named_by_the_collector_and_unknown_without_the_integration(
    name: str, collector: Collector, tmp_path: Path
) -> None:
    verdict = "scale-collapse" if name in SCALERS else "nonfinite-loss"
    assert verdict in findings(collector, trained(name, tmp_path / "with", collector, "integrated", "10"))
    without = trained(name, tmp_path / "without", collector, "alone", "10")
    assert (name in SCALERS) == bool(without)
    assert not without or verdict not in findings(collector, without)


def test_a_healthy_training_has_no_incident_and_its_metrics(collector: Collector, tmp_path: Path) -> None:
    run = trained("huggingface", tmp_path / "healthy", collector, "integrated")
    assert [] == collector.ask(f"/api/v1/runs/{run['id']}/incidents")["items"]
    (series,) = collector.ask(f"/api/v1/runs/{run['id']}/series?names=val_loss")["items"]
    assert 3 == len(series["values"])
