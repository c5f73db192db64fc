"""Real runs of two models, and one that came back, held against a baseline by a real collector."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.e2e.processes import Collector, wait_for

PROGRAM = """
import sys
from pathlib import Path
import torch, ammeter
name, width, first, last, tags = sys.argv[1], *map(int, sys.argv[2:5]), dict(word.split("=") for word in sys.argv[5:])
torch.manual_seed(first)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
if first:
    saved = torch.load(f"{name}-{first}.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
run = ammeter.watch(model, optimizer, name=name, project="tests", config={"seed": 0}, tags=tags)
print(run.id, flush=True)
for step in range(first, last):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    if step % 10 == 9:
        run.log(val_loss=1.0, val_accuracy=0.8 if name == "base" else 0.6)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{name}-{step + 1}.pt")
run.close()
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    started = Collector(tmp_path / "server").start()
    yield started
    started.stop()


def train(folder: Path, collector: Collector, *words: object, run: str = "") -> str:
    (folder / "program.py").write_text(PROGRAM)
    settings = {"AMMETER_DIR": str(folder / "runs"), "AMMETER_URL": collector.url, "OMP_NUM_THREADS": "1"}
    settings |= {"AMMETER_RUN_ID": run} if run else {}
    command = [sys.executable, str(folder / "program.py"), *map(str, words)]
    environment = {**os.environ, **settings}
    ran = forked.run(command, env=environment, cwd=folder, capture_output=True, timeout=120)
    assert 0 == ran.returncode, ran.stderr
    return ran.stdout.strip()


def test_only_like_runs_are_compared_and_one_that_came_back_is_compared_whole(
    collector: Collector, tmp_path: Path
) -> None:
    def compared(run: str, last: int) -> dict[str, Any]:
        def whole() -> dict[str, Any] | None:
            comparison: dict[str, Any] = collector.ask(f"/api/v1/runs/{run}/compare/{base}")
            loss = [curve["steps"][-1] for curve in comparison["series"] if curve["name"] == "loss"]
            return comparison if loss == [last] else None

        found: dict[str, Any] = wait_for(whole, f"{run} is there up to step {last}", collector.log)
        return found

    better = "better.val_accuracy=higher"
    base = train(tmp_path, collector, "base", 12, 0, 70, better)
    other = train(tmp_path, collector, "other", 64, 0, 70, "baseline=base", better)
    comparison = compared(other, 69)
    assert (
        "model is 641 parameters in 4 tensors against 121 parameters in 4 tensors"
        in comparison["numbers"]["not_compared"]["speed"]
    )
    assert (None, None, []) == tuple(comparison["numbers"][name] for name in ("speedup", "validation_delta", "metrics"))
    assert ["not-comparable"] == [finding["verdict"] for finding in comparison["findings"]]

    resumed = str(uuid.uuid4())
    for first, last in ((0, 40), (20, 70)):
        train(tmp_path, collector, "resumed", 12, first, last, "baseline=base", better, run=resumed)
    comparison = compared(resumed, 69)
    steps = {curve["name"]: curve["steps"] for curve in comparison["series"]}
    assert list(range(70)) == steps["loss"]
    assert list(range(9, 70, 10)) == steps["val_loss"] == steps["val_accuracy"]
    assert ("val_accuracy", 69) == tuple(
        comparison["numbers"][name] for name in ("validation_metric", "validation_step")
    )
    assert pytest.approx(0.25) == comparison["numbers"]["validation_delta"]
    assert comparison["numbers"]["speedup"] > 0
    wait_for(
        lambda: (
            "validation-drift"
            in [incident["verdict"] for incident in collector.ask(f"/api/v1/runs/{resumed}/incidents")["items"]]
        ),
        "the drift is an incident",
        collector.log,
    )
