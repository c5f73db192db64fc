"""Numbers in the evidence of findings, checked against a recording."""

from __future__ import annotations

from typing import Any

import pytest

from bench.wild.claims import wrong_statements
from bench.wild.oracle import Recording, Row
from bench.wild.program import Program
from bench.wild.truth import Truth

NAMES = ["a", "a.weight", "b.weight"]
PROGRAM = Program("", "", frozenset(), "", 10, 0)


def row(step: int, **more: Any) -> Row:
    """A healthy step at a scale of 1024 with a norm of 2 and a loss of 3."""
    healthy: dict[str, Any] = {
        "used_scale": 1024.0,
        "norms": [2048.0, 2.0, 1.0],
        "largest": "a.weight",
        "tensors": 2,
        "elements": 100,
        "moved": 0.01,
        "applied": 1,
        "cosine": 0.5,
    }
    return Row(step, more.pop("loss", 3.0), more.pop("scale", 1024.0), str(step), "", **{**healthy, **more})


def skipped(step: int, scale: float, **more: Any) -> Row:
    bad = {"norms": [None], "bad_gradients": ["a.weight"], "applied": 0, "moved": 0.0}
    return row(step, used_scale=scale, scale=scale / 2, **{**bad, **more})


HEALTHY = [row(step) for step in range(10)]
SPIKE = [*HEALTHY, row(10, loss=9.0, norms=[2048e3, 2e3, 1.0], largest="b.weight"), row(11)]
RISING = [*HEALTHY, *(row(step, loss=10.0**step, norms=[1e9], moved=2.0) for step in (10, 11, 12))]
FAILING = [*HEALTHY, *(skipped(step, 2.0 ** (20 - step)) for step in (10, 11, 12)), row(13, used_scale=128.0)]
GROWING = [
    *(row(step, used_scale=2.0 ** (step // 3), scale=2.0 ** ((step + 1) // 3)) for step in range(12)),
    skipped(12, 16.0),
]
BAD_LOSS = [*HEALTHY, row(10, loss=None), row(11, loss=None, applied=0), row(12)]
BAD_WEIGHTS = [*HEALTHY, *(row(step, bad_weights=["a.weight"]) for step in (10, 11, 12))]
LONG = [row(step) for step in range(13)]
SMALL = [row(step, zeros=30, subnormals=20) for step in range(12)]


def wrong(
    verdict: str, rows: list[Row], first: int = 10, last: int = 12, losses: bool = True, **evidence: Any
) -> list[str]:
    finding = {
        "verdict": verdict,
        "first_step": first,
        "opened_step": first,
        "last_step": last,
        "cause": "",
        "tensor": evidence.pop("tensor", None),
        "evidence": evidence,
    }
    return wrong_statements(finding, Truth(PROGRAM, Recording(rows, 0, [], "", NAMES)), steps=True, losses=losses)


TRUE: list[tuple[str, list[Row], dict[str, Any]]] = [
    (
        "gradient-spike",
        SPIKE,
        {"grad_norm": 2e3, "usual_grad_norm": 2.01, "loss": 9.0, "loss_before": 3.0, "tensor": "b.weight"},
    ),
    ("gradient-spike", SPIKE, {"loss_scale": 1024.0}),
    ("diverged", RISING, {"first_loss": 3.0, "loss_before": 3.0, "largest_loss": 1e12, "loss": 1e10, "grad_norm": 1e9}),
    ("diverged", RISING, {"update_ratio": 1.8}),
    (
        "nonfinite-gradient",
        FAILING,
        {"bad_steps": 3, "steps_applied": 0, "lowest_failed_scale": 256.0, "next_applied_scale": 128.0},
    ),
    ("nonfinite-gradient", FAILING, {"bad_steps": 3, "nonfinite_tensors": 1, "finite_tensors": 1}),
    (
        "scale-collapse",
        FAILING,
        {"skipped_steps": 3, "scale_from": 1024.0, "scale_to": 256.0, "lowest_failed_scale": 256.0},
    ),
    ("scale-collapse", FAILING, {"skipped_steps": 3, "applied_again_at_step": 13, "applied_again_at_scale": 128.0}),
    ("overflow-storm", FAILING, {"steps_skipped": 3, "steps_applied": 1, "highest_scale": 1024.0}),
    ("overflow-storm", GROWING, {"steps_skipped": 1, "steps_applied": 2, "growth_factor": 2.0, "growth_interval": 3}),
    ("nonfinite-loss", BAD_LOSS, {"nonfinite_losses": 2, "steps_skipped": 1, "steps_applied": 1}),
    ("nonfinite-weights", BAD_WEIGHTS, {"weights": 1, "last_finite_step": 9, "tensor": "a.weight"}),
    ("gradient-underflow", SMALL, {"lost_share": 0.5, "zero_share": 0.3, "scale": 1024.0}),
    ("no-loss-scaling", LONG, {"steps_without_scaler": 3}),
    ("clip-before-unscale", FAILING, {"scale": 512.0}),
    ("sign-flip", LONG, {"cosine": 0.5}),
    ("run-lost", LONG, {"last_step": 13}),
]

FALSE: list[tuple[str, str, list[Row], dict[str, Any]]] = [
    ("a gradient norm of 3000", "gradient-spike", SPIKE, {"grad_norm": 3e3}),
    ("a usual gradient norm of 9", "gradient-spike", SPIKE, {"usual_grad_norm": 9000.0}),
    ("loss_scale 2048 at step 10", "gradient-spike", SPIKE, {"loss_scale": 2048.0}),
    ("loss 3.5 at step 10", "gradient-spike", SPIKE, {"loss": 3.5}),
    ("a loss of 4 before", "gradient-spike", SPIKE, {"loss_before": 4.0}),
    ("a.weight with the largest", "gradient-spike", SPIKE[:11], {"tensor": "a.weight"}),
    ("but from step 10 to 12 it was 1e+12", "diverged", RISING, {"largest_loss": 1e11}),
    ("first_loss 5", "diverged", RISING, {"first_loss": 5.0}),
    ("a step that changed the weights", "diverged", RISING, {"update_ratio": 9.0}),
    ("2 bad steps from 10 to 12, but there were 3", "nonfinite-gradient", FAILING, {"bad_steps": 2}),
    ("1 bad steps applied", "nonfinite-gradient", FAILING, {"bad_steps": 3, "steps_applied": 1}),
    ("a lowest failed scale of 128", "nonfinite-gradient", FAILING, {"bad_steps": 3, "lowest_failed_scale": 128.0}),
    ("2 non-finite and 0 finite", "nonfinite-gradient", FAILING, {"bad_steps": 3, "nonfinite_tensors": 2}),
    ("4 steps skipped", "scale-collapse", FAILING, {"skipped_steps": 4}),
    ("scale_from 2048", "scale-collapse", FAILING, {"skipped_steps": 3, "scale_from": 2048.0}),
    ("2 steps skipped", "overflow-storm", FAILING, {"steps_skipped": 2}),
    ("up to 512", "overflow-storm", FAILING, {"steps_skipped": 3, "highest_scale": 512.0}),
    ("4-fold", "overflow-storm", FAILING, {"steps_skipped": 3, "growth_factor": 4.0}),
    ("every 5 applied", "overflow-storm", GROWING, {"steps_skipped": 1, "growth_factor": 2.0, "growth_interval": 5}),
    ("a share of 0.90", "overflow-storm", FAILING, {"steps_skipped": 3, "steps_applied": 1, "skipped_share": 0.9}),
    ("1 skipped steps that one", "scale-collapse", FAILING, {"skipped_steps": 3, "steps_applied": 1}),
    ("1 non-finite losses", "nonfinite-loss", BAD_LOSS, {"nonfinite_losses": 1, "steps_skipped": 1}),
    (
        "0 such steps applied",
        "nonfinite-loss",
        BAD_LOSS,
        {"nonfinite_losses": 2, "steps_skipped": 1, "steps_applied": 0},
    ),
    ("3 weights with NaN", "nonfinite-weights", BAD_WEIGHTS, {"weights": 3}),
    ("finite weights at step 11", "nonfinite-weights", BAD_WEIGHTS, {"weights": 1, "last_finite_step": 11}),
    ("a lost_share of 0.70", "gradient-underflow", SMALL, {"lost_share": 0.7}),
    ("9 steps without a scaler", "no-loss-scaling", LONG, {"steps_without_scaler": 9}),
    ("a scale of 4096", "clip-before-unscale", FAILING, {"scale": 4096.0}),
    ("a usual_cosine of -0.50", "sign-flip", LONG, {"usual_cosine": -0.5}),
    ("a last step of 5", "run-lost", LONG, {"last_step": 5}),
]


@pytest.mark.parametrize(("verdict", "rows", "evidence"), TRUE)
def test_true_numbers_stand(verdict: str, rows: list[Row], evidence: dict[str, Any]) -> None:
    last = 11 if verdict == "gradient-underflow" else 12
    assert [] == wrong(verdict, rows, last=last, **evidence)


@pytest.mark.parametrize(("part", "verdict", "rows", "evidence"), FALSE, ids=[part for part, *_ in FALSE])
def test_false_numbers_are_found(part: str, verdict: str, rows: list[Row], evidence: dict[str, Any]) -> None:
    last = 11 if verdict == "gradient-underflow" else 12
    assert [found for found in wrong(verdict, rows, last=last, **evidence) if part in found]


def test_a_loss_of_a_micro_batch_is_not_compared() -> None:
    assert [] == wrong("gradient-spike", SPIKE, losses=False, loss=3.5)


@pytest.mark.parametrize(
    ("cause", "stands"), [(" The program ended in this step; no optimizer stepped.", True), ("", False)]
)
def test_an_own_skip_of_the_last_step_need_not_be_counted(cause: str, stands: bool) -> None:
    truth = Truth(PROGRAM, Recording([*HEALTHY, row(10, loss=None, applied=0)], 0, [], "", NAMES))
    evidence = {"nonfinite_losses": 1, "steps_skipped": 0, "steps_applied": 0}
    finding = {"verdict": "nonfinite-loss", "first_step": 10, "opened_step": 10, "cause": cause, "evidence": evidence}
    assert stands == (not wrong_statements(finding, truth, steps=True))


def test_numbers_of_another_rank_are_compared_with_its_rows() -> None:
    recording = Recording(HEALTHY, 0, [], "", NAMES, SPIKE)
    finding = {
        "verdict": "gradient-spike",
        "first_step": 10,
        "opened_step": 10,
        "last_step": 10,
        "cause": "",
        "evidence": {"loss": 9.0, "grad_norm": 2e3},
    }
    truth = Truth(PROGRAM, recording)
    assert [] == wrong_statements(finding, truth.of_rank(1), steps=True)
    assert wrong_statements(finding, truth, steps=True)


@pytest.mark.parametrize(("skipped", "applied", "stands"), [(0, 2, True), (1, 1, True), (0, 3, False), (3, 0, False)])
def test_steps_with_weights_that_were_nan_before_may_have_been_applied(
    skipped: int, applied: int, stands: bool
) -> None:
    bad = [row(at, loss=None, applied=0, bad_weights=["a.weight"]) for at in (10, 11)]
    truth = Truth(PROGRAM, Recording([*HEALTHY, *bad], 0, [], "", NAMES))
    evidence = {"nonfinite_losses": 2, "steps_skipped": skipped, "steps_applied": applied}
    finding = {"verdict": "nonfinite-loss", "first_step": 10, "last_step": 11, "opened_step": 10, "evidence": evidence}
    assert stands == (not wrong_statements({**finding, "cause": ""}, truth, steps=True))
