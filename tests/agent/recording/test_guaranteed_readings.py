"""Real sessions read norms and spectra where the schedule requires them."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from ammeter.recording.fast_path import FastPath, buffer
from ammeter.recording.schedule.bucket import Bucket
from ammeter.recording.schedule.budget import Governor
from ammeter.wire.columns import measured
from tests.agent.training import Recipe, Seen, events, stream, train


@pytest.fixture
def _spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bucket allows a reading."""
    monkeypatch.setattr(Bucket, "allows", lambda _: False)


def _wait(step: int, loss: torch.Tensor) -> torch.Tensor:
    time.sleep(0.04)
    return loss


@pytest.mark.usefixtures("_spent")
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_norms_are_read_in_every_second_long_step_if_the_budget_allows_it(precision: str, tmp_path: Path) -> None:
    outcome = train(Recipe(precision, spoil=_wait, steps=40), watched=True, dir=tmp_path, budget=1.0)
    rows, _ = stream(outcome.run, tmp_path)
    read = rows.steps[measured(rows.scalar("grad_norm"))].tolist()
    assert len(read) >= 15
    assert all(later - earlier <= 2 for earlier, later in pairwise(read))


@pytest.mark.usefixtures("_spent")
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_fast_path_ends_where_the_next_guaranteed_reading_is_due(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 60.0)
    monkeypatch.setattr(Bucket, "_settle", lambda self: setattr(self, "fits", False))
    monkeypatch.setattr(Governor, "_guarantee", lambda self: setattr(self.norm_schedule, "interval", 7))
    outcome = train(Recipe(precision, steps=300), watched=True, dir=tmp_path)
    rows, _ = stream(outcome.run, tmp_path)
    read = rows.steps[measured(rows.scalar("grad_norm"))].tolist()
    assert 7 == max(later - earlier for earlier, later in pairwise(read) if later > 100)


@pytest.mark.usefixtures("_spent")
def test_a_jump_of_the_loss_reads_the_norms_of_its_own_step(tmp_path: Path) -> None:
    recipe = Recipe("fp32", spoil=lambda step, loss: loss * (1e4 if step == 30 else 1.0), steps=40)
    outcome = train(recipe, watched=True, dir=tmp_path)
    rows, _ = stream(outcome.run, tmp_path)
    norms = rows.scalar("grad_norm")
    assert measured(norms)[30:32].all()
    assert norms[30] > 100 * np.nanmax(np.append(norms[:30], norms[31]))


@pytest.mark.usefixtures("_spent")
def test_a_loss_that_gets_a_tiny_weight_reads_all_statistics_at_once(tmp_path: Path) -> None:
    recipe = Recipe(
        spoil=lambda step, loss: loss * (1e-6 if step >= 30 else 1.0),
        scaler={"init_scale": 2.0**7, "growth_interval": 100},
        steps=40,
    )
    outcome = train(recipe, watched=True, dir=tmp_path)
    rows, _ = stream(outcome.run, tmp_path)
    assert [30, 31, 32, 33] == rows.steps[measured(rows.scalar("grad_absmax"))].tolist()
    assert "gradient-underflow" in Seen(outcome.run, tmp_path).findings()


@pytest.mark.parametrize("fast_path", [True, False])
def test_a_change_of_the_scale_and_a_skip_have_spectra(
    fast_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast_path:
        monkeypatch.setattr(FastPath, "is_possible", lambda self: False)
    recipe = Recipe(
        spoil=lambda step, loss: loss * float("inf") if step == 60 else loss,
        scaler={"init_scale": 2.0**10, "growth_interval": 100},
        steps=180,
    )
    outcome = train(recipe, watched=True, dir=tmp_path)
    _, frames = stream(outcome.run, tmp_path)
    (growth,) = events(frames, "scaler.growth")
    spectra = {event.step: event.data for event in events(frames, "gradient.spectrum")}
    assert {60, 61} <= spectra.keys()
    assert spectra[60]["counts"][-1] > 0  # NaN and Inf
    assert 0 == spectra[61]["counts"][-1]
    assert recipe.scaler["init_scale"] == spectra[growth.step + 1]["scale"]  # halved at the skip, doubled since


def test_an_overflow_storm_has_few_spectra(tmp_path: Path) -> None:
    recipe = Recipe(spoil=lambda step, loss: loss * float("inf") if step >= 10 else loss, steps=90)
    outcome = train(recipe, watched=True, dir=tmp_path)
    _, frames = stream(outcome.run, tmp_path)
    spectra = [event.step for event in events(frames, "gradient.spectrum") if event.step >= 10]
    assert 2 <= len(spectra) <= 20
