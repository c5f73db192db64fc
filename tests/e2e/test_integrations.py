"""A program of a training framework, watched by one line, as a collector shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.e2e.processes import Collector, wait_for
from tests.house.tree import ROOT
from tests.parts import library

library("transformers")

PROGRAM = """
import sys
import torch
import transformers
from ammeter.integrations.huggingface import AmmeterCallback
from tests.agent.integrations.trained import BATCH, STEPS, Network, samples

torch.set_num_threads(1)
bad_from = int(sys.argv[1])
transformers.Trainer(
    model=Network(bad_from if bad_from >= 0 else None),
    args=transformers.TrainingArguments(
        "out", max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True, bf16=True, eval_strategy="steps",
        eval_steps=8, save_strategy="no", report_to=[], disable_tqdm=True,
    ),
    train_dataset=samples(),
    eval_dataset=samples(8),
    callbacks=[AmmeterCallback(project="e2e")],
).train()
"""


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    started = Collector(tmp_path_factory.mktemp("server")).start()
    yield started
    started.stop()


def train(folder: Path, url: str, bad_from: int) -> None:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    environment = {"AMMETER_URL": url, "AMMETER_DIR": str(folder / "runs"), "PYTHONPATH": str(ROOT)}
    done = forked.run(
        [sys.executable, str(program), str(bad_from)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
    )
    assert 0 == done.returncode, done.stderr


def run_of(collector: Collector, known: set[str]) -> dict[str, Any]:
    """The run that is new and has ended."""
    items = collector.ask("/api/v1/runs")["items"]
    return next((run for run in items if run["id"] not in known and run["state"] == "ended"), {})


def test_a_planted_fault_is_an_incident_and_a_healthy_run_has_none(collector: Collector, tmp_path: Path) -> None:
    train(tmp_path, collector.url, bad_from=-1)
    healthy = wait_for(lambda: run_of(collector, set()), "the healthy run has ended", collector.log)
    train(tmp_path, collector.url, bad_from=10)
    broken = wait_for(lambda: run_of(collector, {healthy["id"]}), "the broken run has ended", collector.log)
    incidents = {run["id"]: collector.ask(f"/api/v1/runs/{run['id']}/incidents")["items"] for run in (healthy, broken)}
    assert [] == incidents[healthy["id"]]
    assert ["nonfinite-loss"] == [incident["verdict"] for incident in incidents[broken["id"]]]
    (series,) = collector.ask(f"/api/v1/runs/{healthy['id']}/series?names=val_loss")["items"]
    assert 3 == len(series["values"])
