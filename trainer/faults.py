"""Faults to train with on purpose: each is one small function that breaks training in exactly one way."""

import os
import signal
import weakref

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

import faults_beside  # noqa: F401 - its faults enter the registry
import faults_kernels  # noqa: F401 - its faults enter the registry
import faults_order  # noqa: F401 - its faults enter the registry
import faults_run  # noqa: F401 - its faults enter the registry
import faults_scalers  # noqa: F401 - its faults enter the registry
import faults_slow  # noqa: F401 - its faults enter the registry
import faults_values  # noqa: F401 - its faults enter the registry
from ammeter.verdicts.loss_scale import gradient_underflow as gradient_underflow_verdict
from ammeter.verdicts.loss_scale import no_loss_scaling as no_loss_scaling_verdict
from ammeter.verdicts.loss_scale import overflow_storm as overflow_storm_verdict
from ammeter.verdicts.loss_scale import scale_collapse as scale_collapse_verdict
from breaking import REGISTRY, Fault, Faults, Told, as_large_models_have_it, fault, middle_block

__all__ = ["REGISTRY", "Fault", "Faults"]


@fault(precisions=("fp16",), told=Told(symptom="skipped", within=overflow_storm_verdict.WINDOW))
def overflow_storm(training: Faults) -> None:
    """Two of three steps are skipped for good and the scale is a sawtooth at its ceiling: it grows fourfold after
    every good step, instead of twofold after 2000."""
    assert training.scaler
    training.scaler.set_growth_interval(1)
    training.scaler.set_growth_factor(4.0)


@fault(
    first_step=20,
    precisions=("fp16",),
    told=Told(names=lambda model: [middle_block(model).mixes.weight], within=scale_collapse_verdict.HANDFUL),
)
def scale_collapse(training: Faults) -> None:
    """From one step on every step is skipped and the scale halves each time, the loss stands still but is finite: a
    kernel writes past its buffer, so one row of one weight's gradient is Inf in every backward pass."""

    def overwrite_a_row(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[3] = torch.inf
        return gradient

    weight = middle_block(training.model).mixes.weight
    weight.register_hook(overwrite_a_row)  # type: ignore[no-untyped-call]


@fault(first_step=20)
def nonfinite_loss(training: Faults) -> None:
    """The loss is NaN from one step on, yet no step is skipped and nothing is learnt: after a change to the data every
    target is the ignored index, and the mean over no targets is 0/0 with gradients of zero."""
    training.batch = lambda batch: (batch[0], torch.full_like(batch[1], -100))


@fault(
    first_step=20,
    told=Told(
        names=lambda model: [middle_block(model).mlp.fc, middle_block(model).mlp.activation],
        within=scale_collapse_verdict.HANDFUL - 1,
    ),
)
def nonfinite_gradient(training: Faults) -> None:
    """The loss is finite while the gradients of everything before the middle block's activation are NaN. With a scaler
    the scale then collapses; without one the weights are NaN a step later."""
    mlp = middle_block(training.model).mlp
    mlp.activation = DistanceGate(mlp.activation)


class DistanceGate(nn.Module):
    """An activation, opened by how far a position is from the one before it, or a channel in an image. The first has
    none before it, so its distance is zero, and there the square root has no derivative: Inf times zero. An eps under
    the root would mend it."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        before = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        distance = (x - before).square().mean(-1, keepdim=True).sqrt()
        y: Tensor = self.activation(x) * (1 + torch.tanh(distance))
        return y


@fault(precisions=("fp16",), told=Told(within=gradient_underflow_verdict.PERSISTENT, counted="grad_absmax"))
def gradient_underflow(training: Faults) -> None:
    """The loss soon stands still although every step is applied: the scale is 1 and never grows, so that most
    gradients of a large model are below the smallest float16 and become zero."""
    assert training.scaler
    # Where the scale lives: update(new_scale=...) would count as one more update, and load_state_dict() as a resume.
    training.scaler._init_scale = 1.0
    if training.scaler._scale is not None:
        training.scaler._scale.fill_(1.0)
    training.scaler.set_growth_interval(2**31 - 1)
    as_large_models_have_it(training)


@fault(precisions=("fp16",), told=Told(within=no_loss_scaling_verdict.UNASKED))
def no_loss_scaling(training: Faults) -> None:
    """The loss flattens early: float16 autocast without a scaler, so that most gradients of a large model are below
    the smallest float16 and become zero."""
    training.scaler = None
    as_large_models_have_it(training)


@fault(precisions=("fp16",), optimizers=("sgd",), told=Told(line_in="faults.py:clip_before_unscale"))
def clip_before_unscale(training: Faults) -> None:
    """The loss hardly moves although every step is applied: the limit is put on the scaled gradients and unscaling
    then divides what is left by the scale. Trained with SGD; Adam, which does not mind small gradients, hides it."""

    def clipped_too_early(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
        assert scaler
        clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()

    training.attempt = lambda _: clipped_too_early


@fault(first_step=20)
def agent_blind(training: Faults) -> None:
    """The run trains on, but the curve of samples ends: what is given to run.log raises whatever it is asked, as a
    proxy does whose object is gone."""
    training.samples = lambda _: weakref.proxy(Metric())


class Metric:
    """A number of the program's own."""


@fault(first_step=40)
def run_lost(_: Faults) -> None:
    """The process is gone from one moment to the next, without a word: SIGKILL, as the OOM killer sends it."""
    os.kill(os.getpid(), signal.SIGKILL)
