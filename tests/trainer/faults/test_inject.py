"""Ways to break a trainer from outside."""

from __future__ import annotations

import pytest

import broken
import train
from faults import REGISTRY, Fault
from faults.inject import around, imitate_large_model, inject, replace
from options import read_options
from tests.trainer.conftest import Seen, Trains
from tests.trainer.faults.runs import STEPS
from train import Trainer

TWO_STEPS = ("--tiny", "--steps", "2")


@pytest.fixture
def trainer(seen: Seen) -> Trainer:
    return Trainer(read_options(list(TWO_STEPS)))


def test_a_method_is_replaced_on_one_trainer_alone(trainer: Trainer) -> None:
    replace(trainer, validate=lambda: 7.0)
    assert 7.0 == trainer.validate()
    assert "validate" not in vars(Trainer(read_options(list(TWO_STEPS))))


def test_a_method_that_there_is_not_cannot_be_replaced(trainer: Trainer) -> None:
    with pytest.raises(AttributeError, match="Trainer has no method 'validates' to replace"):
        replace(trainer, validates=lambda: 7.0)


def test_a_fault_is_injected_once_and_at_its_step(trainer: Trainer) -> None:
    steps = []
    fault = Fault("a-fault", lambda broken_one: steps.append(broken_one.progress.step), 0, ("fp16",), ("adamw",))
    inject(fault, 1, trainer)
    assert [] == steps
    assert 2 == trainer.train().steps
    assert [1] == steps


def test_a_fault_of_the_first_step_is_there_before_ammeter_watches(trainer: Trainer, seen: Seen) -> None:
    scalers = []
    inject(Fault("a-fault", lambda broken_one: scalers.append(seen.scaler), 0, ("fp16",), ("adamw",)), 0, trainer)
    trainer.train()
    assert [None] == scalers
    assert seen.scaler is trainer.scaler


def test_what_surrounds_a_step_runs_before_and_after_it(trainer: Trainer) -> None:
    applied = []
    around(trainer, *[lambda: applied.append(trainer.progress.applied)] * 2)
    trainer.train()
    assert [0, 1, 1, 2] == applied


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_small_gradients_are_no_fault_by_themselves(
    arch: str, tiny: Trains, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny("--arch", arch, "--steps", str(STEPS)).val_loss
    monkeypatch.setitem(REGISTRY, "large", Fault("large", imitate_large_model, 0, ("fp16",), ("adamw",)))
    monkeypatch.setattr(train, "ammeter", Seen())
    small = broken.main(["--tiny", "--arch", arch, "--steps", str(STEPS), "--fault", "large"])
    assert plain == pytest.approx(small.val_loss, abs=0.1)
