"""Symptoms of the faults of training that jumps, turns round or stands still."""

from __future__ import annotations

import itertools
from statistics import mean

import pytest
import torch

from console import Summary
from faults.dynamics import Average
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import Check, healthy, stand_in, symptoms, trained, with_options

pytestmark = pytest.mark.long


@with_options("--fault", "gradient-spike@50", "--precision", "bf16")
def shows_gradient_spike(run: Summary, seen: Seen) -> None:
    norms = [float(torch.stack([gradient.norm() for gradient in step.values()]).norm()) for step in seen.gradients]
    assert min(norms[50:54]) > 20 * max(norms[:50])
    assert max(norms[54:]) < 20 * max(norms[:50])
    assert max(seen.losses[51:58]) > seen.losses[49] + 0.2


@with_options("--fault", "sign-flip@20", "--batch", "16")
def shows_sign_flip(run: Summary, seen: Seen) -> None:
    assert turned(seen) < -0.25
    trained(seen, "--batch", "16")
    assert turned(stand_in()) > -0.1


def shows_stagnation(run: Summary, seen: Seen) -> None:
    assert run.applied >= run.steps - 1
    assert abs(mean(seen.losses[:10]) - mean(seen.losses[-10:])) < 0.1
    assert seen.share(lambda gradient: gradient.abs() > 1) > 0.01  # scaled, as they are in a healthy run
    assert healthy(seen).val_loss < mean(seen.losses[-10:]) - 0.5


def shows_half_master_weights(run: Summary, seen: Seen) -> None:
    weights = dict(seen.model.named_parameters())
    assert {torch.bfloat16} == {weight.dtype for weight in weights.values()}
    gains = torch.cat([weight for name, weight in weights.items() if "norm" in name and name.endswith("weight")])
    assert (gains == 1).float().mean() > 0.95
    assert run.val_loss > healthy(seen, "--precision", "bf16").val_loss


def shows_lost_updates(run: Summary, seen: Seen) -> None:
    """An average that is a tenth away from its weights does not come nearer."""
    assert healthy(seen).val_loss == run.val_loss
    average = Average(seen.model)
    average.update_parameters(seen.model)
    before = [parameter.clone() for parameter in average.parameters()]
    with torch.no_grad():
        for parameter in seen.model.parameters():
            parameter.mul_(1.1)
    for _ in range(100):
        average.update_parameters(seen.model)
    assert all(map(torch.equal, before, average.parameters()))


def shows_half_optimizer_state(run: Summary, seen: Seen) -> None:
    states = [state for optimizer in seen.optimizers for state in optimizer.state.values()]
    kept = [value for state in states for value in state.values() if value.dim()]
    assert {torch.bfloat16} == {value.dtype for value in kept}
    assert run.val_loss != healthy(seen).val_loss


def turned(seen: Seen) -> float:
    """The cosine between the gradients of two neighbouring steps, late in the run, in the middle."""
    late = [torch.cat([gradient.flatten() for gradient in step.values()]) for step in seen.gradients[-20:]]
    pairs = itertools.pairwise(late)
    return float(torch.stack([torch.cosine_similarity(*pair, dim=0) for pair in pairs]).median())


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
