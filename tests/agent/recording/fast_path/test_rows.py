"""Each fast step has its row, and the training is unchanged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ammeter
from ammeter.recording.fast_path import FastPath, buffer
from ammeter.recording.schedule.attention import STRETCH_STEPS, Attention
from tests.agent.recording.fast_path.programs import BAD, FULL_STEPS, Program, bits, measured
from tests.agent.training import Recipe, events, stream, train

RECIPES = {
    "fp16": Recipe("fp16", steps=60),
    "fp16, clip": Recipe("fp16", clip=1.0, steps=60),
    "fp16, accumulated": Recipe("fp16", accumulate=3, clip=1.0, steps=40),
    "bf16": Recipe("bf16", steps=60),
    "bf16, clip, accumulated": Recipe("bf16", clip=0.5, accumulate=2, steps=40),
    "fp32, sgd": Recipe("fp32", optimizer="sgd", steps=60),
}


SAME = (
    *("loss", "micro_batches", "samples", "tokens", "applied", "skipped"),
    *("scale", "growth_tracker", "found_inf"),
)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
@pytest.mark.parametrize("flush", [0.0, 0.003, 10.0])
def test_a_fast_step_has_the_row_of_a_full_step(
    recipe: Recipe, flush: float, tmp_path: Path, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", flush)
    fast = train(recipe, watched=True, dir=tmp_path / "fast")
    assert 0 < entered[0] <= 2 * FULL_STEPS
    with monkeypatch.context() as patch:
        patch.setattr(FastPath, "is_possible", lambda self: False)
        full = train(recipe, watched=True, dir=tmp_path / "full")
    rows, frames = stream(fast.run, tmp_path / "fast")
    other_rows, other_frames = stream(full.run, tmp_path / "full")
    assert list(range(recipe.steps)) == rows.steps.tolist() == other_rows.steps.tolist()
    for name in SAME:
        assert bits(other_rows, name) == bits(rows, name), name
    for name in ("scaler.growth", "scaler.backoff", "step.skipped"):
        assert [(event.step, event.data) for event in events(other_frames, name)] == [
            (event.step, event.data) for event in events(frames, name)
        ]
    assert (rows.scalar("step_seconds")[1:] > 0).all()
    assert (rows.scalar("overhead_seconds") >= 0).all()
    assert (np.diff(rows.times) > 0).all()
    followed = rows.scalar("calls_followed")[2 * FULL_STEPS :]
    assert (STRETCH_STEPS if events(frames, "step.skipped") else 0) == followed.sum()
    assert [] == events(frames, "probe.failed")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_training_on_the_fast_path_ends_bit_for_bit_as_a_bare_one(
    recipe: Recipe, tmp_path: Path, entered: list[int]
) -> None:
    watched = train(recipe, watched=True, dir=tmp_path)
    assert entered
    bare = train(recipe, watched=False)
    assert bare.state == watched.state
    assert bare.losses == watched.losses


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_loss_that_is_not_finite_is_recorded_in_its_step_with_all_its_gradients(
    recipe: Recipe, tmp_path: Path, entered: list[int]
) -> None:
    spoilt = Recipe(**{**vars(recipe), "spoil": lambda step, loss: loss * (math.nan if step == BAD else 1)})
    run = train(spoilt, watched=True, dir=tmp_path)
    rows, frames = stream(run.run, tmp_path)
    assert recipe.steps == len(rows.steps)
    assert [BAD] == [at for at, loss in enumerate(measured(rows, "loss")) if math.isnan(loss)][:1]
    if recipe.clip or recipe.precision == "fp16":
        first = next(event for event in events(frames, "gradient.nonfinite") if event.step >= BAD)
        assert BAD == first.step
        assert 0 < first.data["count"] == len(first.data["tensors"])
    if recipe.precision == "fp16":
        assert BAD in [event.step for event in events(frames, "step.skipped")]
    assert [] == events(frames, "probe.failed")


def test_passes_inside_of_backward_are_no_micro_batches(tmp_path: Path, entered: list[int]) -> None:
    """A checkpointed block runs forward again in backward, and has its own backward call."""
    program = Program(tmp_path)
    model = program.model
    for _ in range(40):
        hidden = checkpoint(model[1], model[0](torch.ones(4, 8)), use_reentrant=True)
        program.optimizer.zero_grad()
        model[2](hidden).mean().backward()
        program.optimizer.step()
    rows, _ = program.read()
    assert entered
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert not np.isnan(rows.scalar("loss")).any()


def test_several_losses_may_go_back_in_one_call(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path)
    for _ in range(40):
        program.optimizer.zero_grad()
        torch.autograd.backward([program.loss(), program.loss() * 3])
        program.optimizer.step()
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert not np.isnan(rows.scalar("loss")).any()


def test_no_closure_is_none(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path)
    for step in range(40):
        program.optimizer.zero_grad()
        program.backward()
        program.optimizer.step(None) if step % 2 else program.optimizer.step(closure=None)
    rows, _ = program.read()
    assert 40 == len(rows.steps)
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert 1 == len(entered)


@pytest.mark.parametrize("given", ["dict", "list", "inference", "keywords"])
def test_any_form_of_input_is_counted(given: str, tmp_path: Path, entered: list[int]) -> None:
    class Takes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 1)

        def forward(self, batch: Any, scale: float = 1.0, mask: Any = None) -> torch.Tensor:
            x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
            out: torch.Tensor = self.fc(x.clone()).mean() * scale
            return out

    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    with torch.inference_mode(given == "inference"):
        x = torch.ones(5, 8)
    for _ in range(30):
        loss = (
            model(batch=x, mask=None)
            if given == "keywords"
            else model({"dict": {"x": x}, "list": [x]}.get(given, x), 2.0)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert [5.0] * 30 == measured(rows, "samples")
    assert 1 == len(entered)


def test_batches_that_differ_count_as_the_usual_size(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path)
    for step in range(200):
        program.step(torch.ones(3 + step % 3, 8))
    rows, _ = program.read()
    assert 1 == len(entered)
    assert [3.0, 4.0, 5.0] == measured(rows, "samples")[:3]
    assert 200 * 4 == pytest.approx(np.nansum(rows.scalar("samples")), rel=0.2)


def test_a_disabled_scaler_counts_as_none(tmp_path: Path, entered: list[int]) -> None:
    program = Program(tmp_path, scaler=True)
    program.run.close()
    program.scaler = torch.amp.GradScaler("cpu", enabled=False)
    program.run = ammeter.watch(program.model, program.optimizer, program.scaler, dir=tmp_path)
    entered.clear()
    for _ in range(40):
        program.step()
    rows, _ = program.read()
    assert 1 == len(entered)
    assert [1.0] * 40 == measured(rows, "applied")
    assert [1.0] * 40 == measured(rows, "micro_batches")
    assert np.isnan(rows.scalar("scale")).all()


def test_a_stretch_of_followed_steps_begins_on_time_while_fast_steps_are_buffered(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attention, "_interval", lambda self, seconds: 30)
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 3600.0)
    for _ in range(80):
        program.step()
    followed = np.flatnonzero(program.read()[0].scalar("calls_followed"))
    assert FULL_STEPS + 30 <= followed[followed > 2 * FULL_STEPS][0] <= FULL_STEPS + 34
