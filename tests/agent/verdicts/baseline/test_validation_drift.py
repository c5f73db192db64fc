"""validation-drift compares validations at equal steps and names the first from which on they are worse."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ammeter.verdicts.framework.run_likeness import FRAMEWORK_VERSION
from tests.agent.pairs import CONFIG, check_words, course, judged

Row = Callable[[int], dict[str, float]]


def worse(share: float, first: int = 0, every: int = 20) -> Row:
    """The validations from a step on, worse by this share."""

    def row(step: int) -> dict[str, float]:
        return {"val_loss": (3.0 - step / 400) * (1 + share)} if step >= first and (step + 1) % every == 0 else {}

    return row


def test_three_validations_in_a_row_that_are_worse_are_named_from_the_first_on() -> None:
    run = course(precision="bfloat16", row=worse(0.05, first=100))
    finding = judged(run, course(name="monday"))["validation-drift"]
    check_words(finding)
    assert ("ticket", 119, 159, 199) == (finding.severity, finding.first_step, finding.opened_step, finding.last_step)
    assert finding.cause.startswith(
        'Since step 119, the validation loss is worse than that of the run "monday" by more than'
    )
    assert "the limit of 1.0 %, in 5 validations in a row" in finding.cause
    assert (
        "At step 199 it is 2.628 against 2.503: 5.0 % worse. At step 99 the difference was within the limit."
        in finding.cause
    )
    assert "Train in float32, or find what bfloat16 spoils: " in finding.fix
    assert "nothing but the precision differs" in finding.fix


def test_what_else_differs_comes_first() -> None:
    run = course(precision="bfloat16", config=CONFIG | {FRAMEWORK_VERSION: "5.1"}, row=worse(0.05))
    fix = judged(run, course(config=CONFIG | {FRAMEWORK_VERSION: "5.0"}))["validation-drift"].fix
    assert fix.startswith(f"Give both runs the same {FRAMEWORK_VERSION} first: they differ there as well.")


def test_two_are_not_enough_while_the_run_goes_on_and_all_are_once_it_has_ended() -> None:
    row = worse(0.05, every=100)
    assert {} == judged(course(over=False, every=100, row=row), course(every=100))
    finding = judged(course(precision="float16", every=100, row=row), course(every=100))["validation-drift"]
    assert (99, 199) == (finding.first_step, finding.opened_step)
    assert "is the first at which both runs have a value" in finding.cause


def test_what_comes_back_is_over_and_what_is_better_or_within_a_percent_is_fine() -> None:
    def back(step: int) -> dict[str, float]:
        return worse(0.5)(step) if step < 150 else {}

    for row in (back, worse(-0.3), worse(0.009)):
        assert {} == judged(course(precision="float16", row=row), course())


def test_one_that_is_not_finite_is_enough() -> None:
    def row(step: int) -> dict[str, float]:
        return {"val_loss": math.nan} if step == 199 else {}

    finding = judged(course(precision="float16", over=False, row=row), course())["validation-drift"]
    assert (199, "Infinity") == (finding.first_step, finding.evidence["delta"])
    assert "not a finite number" in finding.cause


def test_another_seed_may_take_twice_as_much_and_an_agreed_delta_stands() -> None:
    other = {**CONFIG, "seed": 1}
    assert {} == judged(course(config=other, row=worse(0.015)), course())
    seeded = judged(course(config=other, row=worse(0.03)), course())["validation-drift"]
    assert "The seeds differ, so chance may explain a part of it." in seeded.cause
    assert {} == judged(course(precision="float16", row=worse(0.05)), course(), delta=0.1)
    assert ["validation-drift"] == list(judged(course(precision="float16", row=worse(0.002)), course(), delta=0.001))


@pytest.mark.parametrize("every", [7, 13])
def test_validations_at_other_steps_are_not_compared(every: int) -> None:
    shifted = course(precision="float16", every=every, row=lambda step: {"val_loss": 9.0} if step % 20 == 3 else {})
    assert {} == judged(shifted, course(every=20))
