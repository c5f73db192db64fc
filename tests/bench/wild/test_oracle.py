"""The oracle: repaired programs train, broken ones differ from the step on at which the fault begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.wild import oracle, processes
from bench.wild.oracle import Recorder, Recording, Row
from bench.wild.program import assemble
from bench.wild.recipe import Recipe
from bench.wild.truth import Truth

PROGRAMS = {
    "gradients-not-reset/missing/every-7/class/mlp/sgd/fp16/run/200ms/3": 6,
    "nonfinite-loss/mean/late/script/transformer/adamw/bf16/watch/200ms/4": 20,
    "activation-overflow/multiply/once/class/conv/own/own-scaler/late/200ms/5": 20,
    "ranks-apart/one-rank/late/ranks/rnn/sgd/fp32/run/200ms/6": 20,
    "resume-without-optimizer/forgotten/constant/resume/residual/sgd/fp32/run/200ms/7": 25,
}


def recorded(recipe: Recipe, kind: str, folder: Path) -> Recording:
    program = assemble(recipe, kind)
    assert program is not None
    return processes.record(recipe, program, folder)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_twin_trains_and_the_fault_changes_its_numbers(name: str, tmp_path: Path) -> None:
    recipe = Recipe.parse(name)
    twin, broken = recorded(recipe, "twin", tmp_path / "twin"), recorded(recipe, "fault", tmp_path / "fault")
    assert "" == twin.trouble
    assert twin.digests
    assert twin.names
    assert PROGRAMS[name] == oracle.symptom(broken, twin)
    assert None is oracle.symptom(twin, twin)


def test_the_recording_shows_what_was_not_finite(tmp_path: Path) -> None:
    recipe = Recipe.parse("nonfinite-weights/write/once/main/mlp/sgd/fp32/run/200ms/2")
    recording = recorded(recipe, "fault", tmp_path / "fault")
    bad = [row.step for row in recording.rows if row.bad_weights]
    assert 20 == bad[0]
    assert 1 == len(recording.rows[20].bad_weights)
    assert recording.rows[20].loss_is_finite
    assert not recording.rows[21].loss_is_finite
    assert "its loss or weights end as NaN or Inf" == recording.trouble


def test_a_program_that_dies_differs_from_its_last_step_on(tmp_path: Path) -> None:
    recipe = Recipe.parse("run-lost/kill/once/main/mlp/sgd/fp32/run/200ms/2")
    twin, broken = recorded(recipe, "twin", tmp_path / "twin"), recorded(recipe, "fault", tmp_path / "fault")
    assert -9 == broken.code
    assert 19 == oracle.symptom(broken, twin)


def test_a_loss_that_grows_is_no_healthy_program() -> None:
    rows = [Row(step, 1.0 + step, 1.0, str(step), "") for step in range(20)]
    assert "its loss grows" in Recording(rows, 0, [], "").trouble
    jump = [Row(step, 5e4 if step == 9 else 1.0, 1.0, str(step), "") for step in range(20)]
    assert "its loss rises from 1 to 5e+04" == Recording(jump, 0, [], "").trouble
    assert "took no step" == Recording([], 0, [], "").trouble
    mended = [Row(0, 1.0, 1.0, "a", ""), Row(1, 1.0, 1.0, "b", "", bad_weights=["w"]), Row(2, 1.0, 1.0, "c", "")]
    assert "its weights are NaN or Inf at times" == Recording(mended, 0, [], "").trouble
    assert "ended with 1: Oh" == Recording([], 1, [], "well\nOh").trouble


def test_a_step_without_hooks_counts_as_applied(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    recorder = Recorder(tmp_path / "rows")
    for step in range(2):
        recorder.gradients(model, 1.0)
        recorder.unscaled(model)
        if step:
            torch._foreach_mul_([weight.data for weight in model.parameters()], 1.5)
        recorder.stepped(model)
        recorder.step(step, 1.0, model, 1.0)
    recorder.close()
    rows, _ = oracle.read(tmp_path / "rows")
    assert [0, 1] == [row.applied for row in rows]
    assert [0.0, 0.5] == [round(row.moved or 0.0, 3) for row in rows]


def test_gradients_of_each_evaluation_of_a_closure_are_known(tmp_path: Path) -> None:
    recipe = Recipe.parse("nonfinite-gradient/helper/after-eval/script/conv/lbfgs/bf16/watch/200ms/411090")
    recording = recorded(recipe, "fault", tmp_path / "fault")
    row = next(row for row in recording.rows if row.bad_gradients)
    assert 18 == len(row.bad_gradients) == row.tensors
    assert 0 < len(row.bad_earlier[0]) < 18
    assert row.bad_earlier[0] in Truth(assemble(recipe, "fault"), recording).bad_gradients(row)  # type: ignore[arg-type]


def test_norms_beyond_the_squares_of_float32_are_known(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.full((1, 2), 1e30)
    recorder = Recorder(tmp_path / "rows")
    recorder.gradients(model, 1.0)
    recorder.unscaled(model)
    recorder.step(0, 1.0, model, 1.0)
    recorder.close()
    (row,), _ = oracle.read(tmp_path / "rows")
    assert [pytest.approx(1e30 * 2**0.5)] * 3 == row.norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_in_half_precision_is_known(dtype: torch.dtype, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recorder = Recorder(tmp_path / "rows")
    for step in range(2):
        loss = model(torch.ones(2, 2)).sum()
        loss.backward()
        optimizer.step()
        for state in optimizer.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].to(dtype)
        recorder.step(step, loss, model, 1.0)
    recorder.close()
    assert [False, dtype is torch.bfloat16] == [row.half_state for row in oracle.read(tmp_path / "rows")[0]]
