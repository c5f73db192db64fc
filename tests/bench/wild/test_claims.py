"""Statements in findings, checked against a recording."""

from __future__ import annotations

from typing import Any

import pytest

from bench.wild.claims import wrong_statements
from bench.wild.oracle import Recording, Row
from bench.wild.program import Program
from bench.wild.truth import Truth

ROWS = [
    Row(step, None if step == 12 else 1.0, 1024.0, str(min(step, 10)), "", bad_gradients=["a.weight"] * (step > 10))
    for step in range(20)
]
PROGRAM = Program("GradScaler()\n\nthird\n", "", frozenset({3}), "a", 10, 0)
TRUTH = Truth(PROGRAM, Recording(ROWS, 0, [], "", ["a", "a.weight", "b"]), 11, "a")


def finding(cause: str = "", **more: Any) -> dict[str, Any]:
    return {"verdict": "some", "first_step": 11, "opened_step": 13, "cause": cause, **more}


TRUE = [
    finding(module="a", caller="train.py:3"),
    finding(module="model1.a", tensor="model1.a.weight"),
    finding(tensor="average.network.a.weight", evidence={"copy": "average"}),
    finding("GradScaler skipped 9 steps from 11 to 19."),
    finding("the loss scale is 1024 (2^10)", last_step=19),
    finding("In 9 steps from 11 to 19 the gradients contained NaN or Inf."),
    finding(title="Loss is NaN at step 12"),
    finding("the loss rose from 0.1 to as much as 2 (step 14: 1.003), and was NaN or infinite at step 12"),
    finding(
        "At step 14 the norm of the gradients jumped from about 1 to 9. The loss was 0.995 at that step and 1 before."
    ),
    finding("The training loss was NaN 1 times since step 11. The step was skipped."),
    finding("The training loss was NaN 9 times. No reading has found NaN or Inf in the weights since."),
]

FALSE = {
    "began at step 9": finding(first_step=9),
    "held until step 99": finding(last_step=99),
    "b with NaN or Inf": finding(
        "2 such steps were applied, and the weights contain NaN or Inf since then, b among them."
    ),
    "names step 99": finding("since step 99"),
    "weights stood still in 9": finding("GradScaler skipped 12 steps from 8 to 19."),
    "a scale of 2^30": finding("the loss scale is 1.07e+09 (2^30)"),
    "there were 9": finding("In 12 steps from 8 to 19 the gradients contained NaN or Inf."),
    "0 of them moved": finding("The step was applied with non-finite gradients."),
    "a finite loss": finding("At step 12 the gradients contained NaN or Inf although the loss was finite."),
    "it was finite": finding(title="Loss is NaN at step 13"),
    "but there were 1": finding("The training loss was NaN 7 times since step 11."),
    "at step 13, but it was finite": finding("as much as 2, and was NaN or infinite at step 13"),
    "a loss of 3.5 at step 14, but it was 1.0": finding("the loss rose from 0.1 to as much as 4 (step 14: 3.5)"),
    "a loss of 2.5 at step 15, but it was 1.0": finding(
        "At step 15 the norm of the gradients jumped from about 1 to 9. The loss was 2.5 at that step and 1 before."
    ),
    "the program does not use": finding("The output of a (MulBackward0) overflowed float16, whose largest value is"),
    "all were finite": finding("the weights contain NaN or Inf"),
    "not in the model": finding(module="c"),
    "but it is a": finding(module="b"),
    "line 2, which is empty": finding(caller="train.py:2"),
}


@pytest.mark.parametrize("statement", TRUE)
def test_true_statements_stand(statement: dict[str, Any]) -> None:
    assert [] == wrong_statements(statement, TRUTH, steps=True)


@pytest.mark.parametrize("wrong", FALSE)
def test_false_statements_are_found(wrong: str) -> None:
    assert [found for found in wrong_statements(FALSE[wrong], TRUTH, steps=True) if wrong in found]


@pytest.mark.parametrize(("verdict", "stands"), [("cast-churn", True), ("fp32-fallback", False)])
def test_casts_may_be_older_than_the_first_other_number(verdict: str, stands: bool) -> None:
    given = {"verdict": verdict, "first_step": 1, "opened_step": 1, "cause": ""}
    assert stands == (not wrong_statements(given, TRUTH, steps=True))


def test_steps_of_another_count_are_not_compared() -> None:
    assert [] == wrong_statements(finding("since step 99", first_step=3), TRUTH, steps=False)


def test_a_step_whose_loss_alone_was_bad_may_have_been_applied() -> None:
    rows = [Row(step, None if step == 3 else 1.0, 1.0, str(step), "") for step in range(6)]
    truth = Truth(PROGRAM, Recording(rows, 0, [], "", ["a"]))
    applied = {"first_step": 3, "opened_step": 3, "cause": "The training loss was NaN at step 3. The step was applied."}
    assert [] == wrong_statements(applied | {"verdict": "nonfinite-loss"}, truth, steps=True)
    assert wrong_statements(applied | {"verdict": "nonfinite-gradient"}, truth, steps=True)


@pytest.mark.parametrize(("verdict", "begins"), [("scale-collapse", True), ("gradient-spike", False)])
def test_an_overflow_before_the_fault_is_the_beginning_of_a_collapse(verdict: str, begins: bool) -> None:
    rows = [Row(step, 1.0, 1.0, str(step), "", bad_gradients=["a"] * (step in (3, 4))) for step in range(6)]
    truth = Truth(PROGRAM, Recording(rows, 0, [], "", ["a"]), symptom=4)
    given = {"verdict": verdict, "first_step": 3, "opened_step": 4, "cause": ""}
    assert begins == (not wrong_statements(given, truth, steps=True))


@pytest.mark.parametrize(("applied", "begins"), [(1, True), (0, False), (2, False)])
def test_a_step_of_one_of_two_optimizers_before_the_fault_is_the_beginning_of_lopsided_ones(
    applied: int, begins: bool
) -> None:
    rows = [Row(step, 1.0, 1.0, str(step), "", applied=applied if step == 3 else 2) for step in range(6)]
    truth = Truth(PROGRAM, Recording(rows, 0, [], "", ["a"]), symptom=4)
    given = {"verdict": "lopsided-step", "first_step": 3, "opened_step": 5, "cause": ""}
    assert begins == (not wrong_statements(given, truth, steps=True))


def test_a_loss_that_jumps_in_the_twin_too_is_the_beginning_of_a_divergence() -> None:
    rows = [Row(step, 20.0 if step > 2 else 2.0, 1.0, str(step), "") for step in range(6)]
    truth = Truth(PROGRAM, Recording(rows, 0, [], "", ["a"]), symptom=5)
    given = {"verdict": "diverged", "opened_step": 5, "cause": ""}
    assert [] == wrong_statements({**given, "first_step": 3}, truth, steps=True)
    assert wrong_statements({**given, "first_step": 2}, truth, steps=True)


def test_a_program_without_grad_scaler_has_no_step_that_it_skipped() -> None:
    truth = Truth(Program("step()\n", "", frozenset(), "", 10, 0), Recording(ROWS, 0, [], "", []))
    (wrong,) = wrong_statements(finding("GradScaler skipped that step."), truth, steps=True)
    assert "GradScaler skipped, but the program has none" in wrong


def test_a_run_that_skips_all_its_steps_has_skipped_each_of_them() -> None:
    rows = [Row(step, 1.0, 1.0, "same", "", applied=0) for step in range(8)]
    truth = Truth(PROGRAM, Recording(rows, 0, [], "", []))
    right = finding("GradScaler skipped 8 steps from 0 to 7.", first_step=0, opened_step=7)
    assert [] == [wrong for wrong in wrong_statements(right, truth, steps=True) if "stood still" in wrong]
    over = finding("GradScaler skipped 9 steps from 0 to 7.", first_step=0, opened_step=7)
    assert any("stood still in 8" in wrong for wrong in wrong_statements(over, truth, steps=True))


@pytest.mark.parametrize(("line", "is_wrong"), [(1, True), (2, False)])
def test_the_loss_of_a_penalty_is_not_compared_with_the_one_that_is_recorded(line: int, is_wrong: bool) -> None:
    program = Program(
        "scale(t.total).backward()\nscale(penalty).backward()\npass\n",
        "scale(t.total).backward()\nscale(penalty).backward()\n__wild__.step(i, t.total, net, 1.0)\n",
        *(frozenset(), "", 10, 0),
    )
    rows = [Row(step, 1.0, 1.0, str(step), "") for step in range(20)]
    quoted = finding(f"The loss of train.py:{line} rose from 1 to as much as 9 (step 12: 7.5).")
    wrong = wrong_statements(quoted, Truth(program, Recording(rows, 0, [], "", [])), steps=True)
    assert is_wrong == any("a loss of 7.5 at step 12" in statement for statement in wrong)


@pytest.mark.parametrize(("in_half", "begins"), [(True, True), (False, False)])
def test_half_state_begins_with_the_state_and_not_with_the_first_other_number(in_half: bool, begins: bool) -> None:
    rows = [Row(step, 1.0, 1.0, str(step), "", half_state=in_half) for step in range(6)]
    truth = Truth(PROGRAM, Recording(rows, 0, [], "", ["a"]), symptom=1)
    given = {"verdict": "half-optimizer-state", "first_step": 0, "opened_step": 0, "cause": ""}
    assert begins == (not wrong_statements(given, truth, steps=True))


def test_losses_of_micro_batches_that_were_not_recorded_may_have_been_bad() -> None:
    given = finding("The training loss was NaN 7 times since step 11.")
    assert [] == wrong_statements(given, TRUTH, steps=True, losses=False)
    assert wrong_statements(given, TRUTH, steps=True)
