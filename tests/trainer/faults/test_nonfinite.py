"""Symptoms of the faults that produce NaN or Inf."""

from __future__ import annotations

import math

import pytest

from console import Summary
from tests.trainer.conftest import Seen, Trains
from tests.trainer.faults.runs import Check, bad_rows, symptoms

pytestmark = pytest.mark.long


def shows_nonfinite_loss(run: Summary, seen: Seen) -> None:
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[20:]))
    assert run.applied == run.steps
    assert all(gradient.isfinite().all() for gradient in seen.gradients[-1].values())
    assert 0 < max(float(gradient.abs().max()) for gradient in seen.gradients[-1].values())


def shows_masked_labels(run: Summary, seen: Seen) -> None:
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[20:]))
    assert run.applied == run.steps
    assert seen.share(lambda gradient: gradient == 0, first_step=20) == 1.0


def shows_nonfinite_gradient(run: Summary, seen: Seen) -> None:
    """NaN in all that comes before the gate, nothing in what comes after it: the frontier names the gate."""
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses))
    names = [name for name, _ in seen.model.named_parameters()]
    before = names[: names.index("blocks.1.mlp.proj.weight")]
    assert set(before) == bad_rows(seen.gradients[20]).keys()
    assert {} == bad_rows(seen.gradients[19])


def shows_nonfinite_weights(run: Summary, seen: Seen) -> None:
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[20:]))
    bad = {name: int((~parameter.isfinite()).sum()) for name, parameter in seen.model.named_parameters()}
    assert {"blocks.1.mlp.fc.weight": 1} == {name: count for name, count in bad.items() if count}


def shows_eps_underflow(run: Summary, seen: Seen) -> None:
    assert math.isfinite(seen.losses[0])
    assert all(gradient.isfinite().all() for gradient in seen.gradients[0].values())
    assert all(map(math.isnan, seen.losses[1:]))


def shows_masked_row_nan(run: Summary, seen: Seen) -> None:
    nan_from_step_20(run, seen)


def shows_activation_overflow(run: Summary, seen: Seen) -> None:
    nan_from_step_20(run, seen)


def nan_from_step_20(run: Summary, seen: Seen) -> None:
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses[:20]))
    assert not any(map(math.isfinite, seen.losses[20:]))
    assert all(parameter.isfinite().all() for parameter in seen.model.parameters())


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_without_a_scaler_a_nan_born_in_backward_is_in_the_weights_a_step_later(
    arch: str, tiny: Trains, seen: Seen
) -> None:
    run = tiny("--arch", arch, "--precision", "bf16", "--fault", "nonfinite-gradient@4", "--steps", "6")
    assert 6 == run.applied
    assert [True] * 5 + [False] == [math.isfinite(loss) for loss in seen.losses]
