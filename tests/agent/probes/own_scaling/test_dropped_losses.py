"""Steps that a program gives up because their loss is NaN are skipped steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ammeter.recording import row_queue
from tests.agent.probes.own_scaling.guarded_loop import BAD, STEPS, Assigned, Loop, Pair, Scaled, by_hand
from tests.agent.probes.own_scaling.program import of_frames

RESETS: dict[str, Callable[[Loop], None]] = {
    "zero_grad": Loop.zero,
    "zeros": lambda loop: loop.zero(False),
    "by hand": by_hand,
    "model": lambda loop: loop.model.zero_grad(),
    "zeros of the model": lambda loop: loop.model.zero_grad(set_to_none=False),
}


@pytest.fixture(autouse=True)
def _rows_are_finished_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many steps are known at the bad one depends on the time otherwise, because rows are written in batches."""
    monkeypatch.setattr(row_queue, "BATCH_SECONDS", 0.0)


class AtTheEnd(Loop):
    """Resets its gradients behind each step, and sees the loss of the step of an accumulation in several parts."""

    reset: Callable[[Loop], None] = Loop.zero
    passes = 1

    def step(self, step: int) -> None:
        losses = [self.loss(step == self.bad and part == self.passes // 2) / self.passes for part in range(self.passes)]
        for loss in losses:
            loss.backward()
        if all(loss.isfinite() for loss in losses):
            self.optimizers[0].step()
        type(self).reset(self)


def check_one_is_skipped(rows: Any, loop: Loop) -> None:
    assert list(range(loop.steps)) == rows.steps.tolist()
    assert [loop.bad] == rows.steps[rows.scalar("skipped") > 0].tolist()
    assert [loop.bad] == rows.steps[~np.isfinite(rows.loss())].tolist()
    assert loop.steps - 1 == rows.scalar("applied").sum()


@pytest.mark.parametrize("kind", [Loop, Scaled, Assigned])
def test_a_step_that_is_dropped_for_its_loss_is_skipped(kind: type[Loop], tmp_path: Path) -> None:
    rows, frames = (loop := kind()).recorded(tmp_path)
    check_one_is_skipped(rows, loop)
    assert "The step was skipped, so no weight was changed" in of_frames(frames)["nonfinite-loss"].cause


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("reset", RESETS)
def test_it_is_found_however_its_gradients_are_reset(reset: str, passes: int, tmp_path: Path) -> None:
    kind = type("Reset", (AtTheEnd,), {"reset": RESETS[reset], "passes": passes})
    check_one_is_skipped((loop := kind()).recorded(tmp_path)[0], loop)


@pytest.mark.parametrize("passes", [1, 2])
def test_it_is_found_in_a_long_run_of_short_steps(passes: int, tmp_path: Path) -> None:
    loop = type("Long", (AtTheEnd,), {"passes": passes})(steps=400, bad=333)
    check_one_is_skipped(loop.recorded(tmp_path)[0], loop)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first", "second"])
def test_one_of_two_optimizers_is_skipped(order: tuple[int, int], tmp_path: Path) -> None:
    loop = type("Ordered", (Pair,), {"order": order})()
    rows, _ = loop.recorded(tmp_path)
    assert list(range(STEPS)) == rows.steps.tolist()
    assert [BAD] == rows.steps[rows.scalar("skipped") > 0].tolist()
    assert [1.0] == rows.scalar("applied")[rows.scalar("skipped") > 0].tolist()


def test_both_optimizers_of_one_loss_are_skipped(tmp_path: Path) -> None:
    class Together(Pair):
        def step(self, step: int) -> None:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss(step == self.bad, self.halves[0]) + self.loss(model=self.halves[1])
            loss.backward()
            for optimizer in self.optimizers if loss.isfinite() else ():
                optimizer.step()

    rows, _ = Together().recorded(tmp_path)
    assert [2.0 * (step == BAD) for step in range(STEPS)] == rows.scalar("skipped").tolist()


@pytest.mark.parametrize("kind", [Loop, Scaled, Assigned, Pair])
def test_watching_changes_no_weight(kind: type[Loop], tmp_path: Path) -> None:
    (watched := kind()).recorded(tmp_path)
    alone = kind()
    for step in range(STEPS):
        alone.step(step)
    for parameter, expected in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(parameter, expected)
