"""The rows and events of a session contain the numbers of the program."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.wire.columns import measured
from ammeter.wire.frames import Bye, Hello
from tests.agent.training import Model, Recipe, events, stream, train


def test_the_unscaled_norm_is_what_clip_grad_norm_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter.recording.schedule.bucket.Bucket.allows", lambda _: True)  # every norm is read
    outcome = train(Recipe(clip=0.5), watched=True, dir=tmp_path)
    rows, _ = stream(outcome.run, tmp_path)
    finite = np.isfinite(outcome.norms)
    assert finite.sum() > 40
    np.testing.assert_allclose(rows.scalar("grad_norm")[finite], np.array(outcome.norms)[finite], rtol=2e-6)


def test_the_loss_is_caught_without_being_logged(tmp_path: Path) -> None:
    for precision in ("fp16", "fp32"):
        outcome = train(Recipe(precision), watched=True, dir=tmp_path)
        rows, _ = stream(outcome.run, tmp_path)
        np.testing.assert_array_equal(np.array(outcome.losses, np.float32), rows.scalar("loss"))


def test_scale_skips_and_growth_are_those_of_the_scaler(tmp_path: Path) -> None:
    recipe = Recipe(spoil=lambda step, loss: loss * float("inf") if step in (20, 21) else loss, steps=45)
    outcome = train(recipe, watched=True, dir=tmp_path)
    rows, frames = stream(outcome.run, tmp_path)
    assert [20, 21] == rows.steps[rows.scalar("skipped") > 0].tolist()
    assert [event.step for event in events(frames, "step.skipped")] == [20, 21]
    moves = [(event.step, event.data["from"], event.data["to"]) for event in events(frames, "scaler.growth")]
    assert moves[0] == (8, 2.0**14, 2.0**15)
    assert 2.0**14 == rows.scalar("scale")[0]
    backoffs = [event.data["to"] for event in events(frames, "scaler.backoff")]
    assert [rows.scalar("scale")[20] / 2, rows.scalar("scale")[20] / 4] == backoffs


def test_a_nan_born_in_backward_is_placed_between_finite_and_nonfinite_tensors(tmp_path: Path) -> None:
    def poison(step: int, model: Any) -> None:
        if step == 10:
            model.middle.weight.register_hook(lambda gradient: gradient * float("nan"))

    outcome = train(Recipe(hook=poison, steps=15), watched=True, dir=tmp_path)
    _, frames = stream(outcome.run, tmp_path)
    first = events(frames, "gradient.nonfinite")[0]
    assert 10 == first.step
    assert first.data["tensors"][0] == {"tensor": "middle.weight", "nans": 576, "infs": 0}
    assert ("middle.weight", 3) == (first.data["last"], first.data["finite_after"])


def test_full_statistics_count_what_a_float64_reference_counts(tmp_path: Path) -> None:
    kept: dict[str, torch.Tensor] = {}

    def keep(step: int, model: Any) -> None:
        if step == 0:
            model.middle.weight.register_hook(lambda gradient: kept.update(gradient=gradient.double().clone()))

    outcome = train(Recipe(hook=keep, steps=1, scaler={"init_scale": 8.0}), watched=True, dir=tmp_path)
    rows, _ = stream(outcome.run, tmp_path)
    at = [tensor.name for tensor in rows.schema.tensors].index("middle.weight")
    scaled = kept["gradient"].abs()
    assert float((scaled == 0).sum()) == rows.stat("grad.zeros")[at, 0]
    assert float(((scaled > 0) & (scaled < 2**-14)).sum()) == rows.stat("grad.subnormals")[at, 0]
    assert float(scaled.max()) / 8 == rows.stat("grad.absmax")[at, 0]
    assert float(scaled.norm()) / 8 == pytest.approx(float(rows.stat("grad.norm")[at, 0]), rel=1e-6)
    assert 1.0 == rows.stat("grad.fp16_grid")[at, 0]


def test_float32_gradients_are_not_on_the_grid_of_float16(tmp_path: Path) -> None:
    outcome = train(Recipe("fp32", steps=3), watched=True, dir=tmp_path)
    rows, _ = stream(outcome.run, tmp_path)
    grid = rows.stat("grad.fp16_grid")[:, 0]
    assert float(np.nanmax(grid[measured(grid)])) < 0.5


def test_clipping_scaled_gradients_is_told_once_with_its_line(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        line = sys._getframe().f_lineno - 1
        scaler.step(optimizer)
        scaler.update()
    run.close()
    _, frames = stream(run.id, tmp_path)
    (told,) = events(frames, "usage.clip_before_unscale")
    assert {key: told.data[key] for key in ("max_norm", "scale")} == {"max_norm": 1.0, "scale": 1024.0}
    assert told.data["caller"].endswith(f"test_session_readings.py:{line}")


def test_float16_autocast_without_a_scaler_is_told(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(8, 12)).float().square().mean()
    loss.backward()
    optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [e.data for e in events(frames, "autocast.entered")] == [{"device": "cpu", "dtype": "float16", "grad": True}]
    assert [] == events(frames, "scaler.seen")
    assert not measured(rows.scalar("scale")).any()


def test_what_is_logged_belongs_to_the_step_that_closed_last(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(val_loss=torch.tensor(float(step)), temperature=10**400 if step == 3 else step)
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [0, 1, 2, 3] == rows.steps.tolist()
    assert [0.0, 1.0, 2.0, 3.0] == rows.scalar("val_loss").tolist()
    assert [0.0, 1.0, 2.0, math.inf] == rows.scalar("temperature").tolist()
    assert 2 == sum(isinstance(frame, Hello) for frame in frames)


def test_two_optimizers_under_one_scaler_are_one_step(tmp_path: Path) -> None:
    first, second, scaler = Model(), Model(), torch.amp.GradScaler("cpu", init_scale=128.0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (first, second)]
    run = ammeter.watch([first, second], optimizers, scaler, dir=tmp_path)
    for _ in range(5):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()
            scaler.step(optimizer)
        scaler.update()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [2.0] * 5 == rows.scalar("applied").tolist()
    assert {"model0.first.weight", "model1.first.weight"} <= {tensor.name for tensor in rows.schema.tensors}


def test_lbfgs_with_its_closure_is_one_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(16, 4)
    evaluations: list[int] = []

    def closure() -> torch.Tensor:
        evaluations[-1] += 1
        optimizer.zero_grad()
        loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for _ in range(3):
        evaluations.append(0)
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [0, 1, 2] == rows.steps.tolist()
    assert [1.0] * 3 == rows.scalar("applied").tolist()
    assert evaluations == rows.scalar("micro_batches").tolist()
    assert 1 < evaluations[0]


def test_a_parameter_group_added_later_gets_columns(tmp_path: Path) -> None:
    model, late = Model(), torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(late.parameters())})
        optimizer.zero_grad()
        late(model(torch.randn(8, 12))).square().mean().backward()
        optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    added = [tensor.name for tensor in rows.schema.tensors].index("group1.0")
    assert [False, False, True, True] == measured(rows.stat("grad.norm"))[added].tolist()
    assert "closed" == next(frame for frame in frames if isinstance(frame, Bye)).reason


def test_sparse_half_complex_missing_and_empty_gradients_are_read(tmp_path: Path) -> None:
    parameters = {
        "sparse": torch.nn.Parameter(torch.zeros(10, 2)),
        "float16": torch.nn.Parameter(torch.ones(3, dtype=torch.float16)),
        "complex64": torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)),
        "unused": torch.nn.Parameter(torch.ones(2)),
        "empty": torch.nn.Parameter(torch.ones(0)),
        "strided": torch.nn.Parameter(torch.ones(4, 3).t()),
    }
    model = torch.nn.ParameterDict(parameters)
    optimizer = torch.optim.SGD(parameters.values(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    indices = torch.tensor([[1, 1, 4]])
    parameters["sparse"].grad = torch.sparse_coo_tensor(
        indices, torch.tensor([[1.0, 0], [2, 0], [0, 4]]), (10, 2), check_invariants=True
    )
    parameters["float16"].grad = torch.full((3,), 60000.0, dtype=torch.float16)
    parameters["complex64"].grad = torch.tensor([3 + 4j, 0], dtype=torch.complex64)
    parameters["empty"].grad = torch.ones(0)
    parameters["strided"].grad = torch.ones(4, 3).t()
    optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    norms = dict(zip((tensor.name for tensor in rows.schema.tensors), rows.stat("grad.norm")[:, 0], strict=True))
    assert 5.0 == norms["sparse"]
    assert 60000.0 * math.sqrt(3) == pytest.approx(norms["float16"], rel=1e-6)
    assert 5.0 == norms["complex64"]
    assert math.sqrt(12) == pytest.approx(norms["strided"], rel=1e-6)
    assert not measured(np.array([norms["unused"], norms["empty"]], np.float32)).any()


@pytest.mark.parametrize(("preset", "norms", "full"), [("light", 1, 0), ("full", 50, 50)])
def test_the_presets_read_only_norms_or_everything(preset: str, norms: int, full: int, tmp_path: Path) -> None:
    outcome = train(Recipe("fp32"), watched=True, dir=tmp_path, preset=preset)
    rows, _ = stream(outcome.run, tmp_path)
    assert norms <= measured(rows.stat("grad.norm"))[0].sum()
    assert full == measured(rows.stat("grad.zeros"))[0].sum()


def test_what_is_logged_about_a_step_that_was_written_at_once_is_told_as_an_event(tmp_path: Path) -> None:
    poisoned = Recipe(steps=3, spoil=lambda step, loss: loss * float("nan") if step == 2 else loss)
    rows, frames = stream(train(poisoned, watched=True, dir=tmp_path).run, tmp_path)
    assert [8.0, 8.0] == rows.scalar("samples")[:2].tolist()
    assert not measured(rows.scalar("samples"))[2]
    assert [(2, {"samples": 8.0})] == [(event.step, event.data) for event in events(frames, "values.logged")]


def test_a_norm_that_the_clip_finds_non_finite_is_read_whatever_the_budget_says(tmp_path: Path) -> None:
    poison = 490
    recipe = Recipe("bf16", clip=1.0, steps=500, spoil=lambda step, loss: loss * (math.nan if step == poison else 1))
    outcome = train(recipe, watched=True, dir=tmp_path, budget=1e-9)
    rows, frames = stream(outcome.run, tmp_path)
    assert not measured(rows.scalar("grad_norm"))[poison - 1]
    assert math.isnan(rows.scalar("grad_norm")[poison])
    assert poison == events(frames, "gradient.nonfinite")[0].step
