"""A cell of the map trains a real model and says what came of it, also if the process ends badly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ammeter.preflight.precision_map import cell
from ammeter.preflight.precision_map.cell import Cell, Training

pytestmark = pytest.mark.long

MODELS = "tests.agent.preflight.models"


def training(name: str, timeout: float = 200.0) -> Training:
    return Training(f"{MODELS}:{name}", steps=6, seed=0, lr=1e-3, timeout=timeout, max_difference=0.1)


def trained(name: str, given: Mapping[str, Any], dtype: str, folder: Path, timeout: float = 200.0) -> Cell:
    return cell.run(training(name, timeout), given, dtype, folder)


def test_a_healthy_model_holds_in_float16_and_is_compared_with_float32(tmp_path: Path) -> None:
    exact = trained("mlp", {"batch_size": 8}, "float32", tmp_path)
    half = trained("mlp", {"batch_size": 8}, "float16", tmp_path)
    cell.compare(half, exact, training("mlp"))
    assert ([], []) == (exact.reasons, half.reasons), (exact.output, half.output)
    assert 6 == len(half.losses)
    assert half.loss_difference is not None
    assert 0 < abs(half.loss_difference) < 0.01
    assert half.time_ratio
    assert half.memory is not None  # a small model may fit into what the start of Python needed
    assert 0 == half.underflow


def test_activations_that_overflow_are_named_by_the_verdict_and_by_the_loss(tmp_path: Path) -> None:
    found = trained("sharp_transformer", {}, "float16", tmp_path)
    assert "loss nan at step 0" in found.reasons
    assert "activation-overflow" in [finding["verdict"] for finding in found.findings]
    assert all(map(math.isnan, found.losses))
    assert not found.holds


def test_the_same_model_holds_in_bfloat16_although_another_cell_did_not(tmp_path: Path) -> None:
    assert not trained("sharp_transformer", {"batch_size": 2}, "float16", tmp_path).holds
    assert trained("sharp_transformer", {"batch_size": 2}, "bfloat16", tmp_path).holds


@pytest.mark.parametrize(
    ("name", "reason"), [("killed", "killed by SIGKILL"), ("out_of_memory", "out of memory"), ("raising", "raised ")]
)
def test_a_crash_is_a_cell_of_the_map(tmp_path: Path, name: str, reason: str) -> None:
    given = {} if name == "raising" else {"batch_size": 2}
    found = trained(name, given, "float32", tmp_path)
    assert (False, False) == (found.holds, found.finished)
    assert found.reasons[0].startswith(reason)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    assert ["no result after 15 s"] == trained("endless", {"batch_size": 2}, "float32", tmp_path, timeout=15).reasons


def test_a_factory_without_the_varied_argument_is_refused(tmp_path: Path) -> None:
    assert "takes no argument 'depth'" in trained("mlp", {"depth": 2}, "float32", tmp_path).refused


def test_a_loss_that_differs_too_much_from_float32_does_not_hold() -> None:
    exact = Cell({}, "float32", finished=True, losses=[1.0], seconds=1.0)
    near = Cell({}, "bfloat16", finished=True, losses=[1.05], seconds=0.5)
    far = Cell({}, "bfloat16", finished=True, losses=[0.8], seconds=0.5)
    for found in (near, far):
        cell.compare(found, exact, training("mlp"))
    assert (True, 0.5) == (near.holds, near.time_ratio)
    assert ["loss -20.0 %"] == far.reasons
