"""The time that steps wait for their data, apart from the rest of the step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ammeter import journal
from tests.agent.training import stream, watching

SLEEP_SECONDS = 0.03


def trained(folder: Path, *, loading: float = 0.0, computing: float = 0.0, micro_batches: int = 1) -> Any:
    """The rows of a run that sleeps before each forward pass, or between forward and backward pass."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer, budget=1.0) as seen:
        (of_run,) = journal.streams(folder / seen.run)
        journal.note_utilization(of_run, 0.5)
        for _ in range(8):
            for _ in range(micro_batches):
                time.sleep(loading)
                loss = model(torch.randn(2, 4)).square().mean()
                time.sleep(computing)
                torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert [] == seen.events("probe.failed")
    return stream(seen.run, folder)[0]


def median(rows: Any, name: str) -> float:
    return float(np.nanmedian(rows.scalar(name)))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_loading_is_a_wait_before_each_forward_pass(micro_batches: int, tmp_path: Path) -> None:
    rows = trained(tmp_path, loading=SLEEP_SECONDS, micro_batches=micro_batches)
    waited = median(rows, "wait_seconds")
    assert micro_batches * SLEEP_SECONDS <= waited <= median(rows, "step_seconds")


def test_computing_is_no_wait(tmp_path: Path) -> None:
    rows = trained(tmp_path, computing=SLEEP_SECONDS)
    assert median(rows, "step_seconds") >= SLEEP_SECONDS
    assert median(rows, "wait_seconds") < SLEEP_SECONDS / 2


def test_the_utilization_of_the_device_is_recorded_once(tmp_path: Path) -> None:
    utilization = trained(tmp_path).scalar("device_utilization")
    assert [0.5] == utilization[np.isfinite(utilization)].tolist()
