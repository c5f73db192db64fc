"""Faults of training that jumps, turns round, stands still, or loses its updates."""

import itertools

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ammeter.verdicts.dynamics.lost_updates import MIN_READINGS as LOST_UPDATE_READINGS
from ammeter.verdicts.dynamics.lost_updates import MIN_SPAN_STEPS as READING_SPAN_STEPS
from ammeter.verdicts.dynamics.sign_flip import MIN_READINGS as SIGN_READINGS
from ammeter.verdicts.dynamics.spike_episode import AMONG_READINGS as SPIKE_READINGS
from ammeter.verdicts.dynamics.stagnation import MIN_STEPS as STAGNATION_STEPS
from cnn import CNN
from faults.inject import around, cast_state, replace, step_with_rate
from faults.registry import Expected, fault
from train import Trainer

SPIKE_BATCHES = 4
SPIKE_FACTOR = 100
TINY_RATE = 1e-6  # of the learning rate that was meant
MISTAKEN_UNIT = 1000  # thousandths taken as ones
DIVERGED_STEPS = 40


@fault(optimizers=("sgd",), expected=Expected(within=DIVERGED_STEPS))
def diverged(trainer: Trainer) -> None:
    """The loss leaps in the first steps and stays high, or becomes NaN: the learning rate is a thousand times what was
    meant, because thousandths were taken as ones. The transformer gets it in the loop, the convolutional network from
    its schedule. Trained with SGD; AdamW and a limit on the norm let some networks come back from it."""
    if isinstance(trainer.model, CNN):
        trainer.scheduler.base_lrs = [MISTAKEN_UNIT * rate for rate in trainer.scheduler.base_lrs]
        for group in trainer.optimizer.param_groups:
            group["lr"] *= MISTAKEN_UNIT
    else:
        step_with_rate(trainer, lambda rate: rate * MISTAKEN_UNIT)


@fault(
    first_step=80,
    precisions=("bf16", "fp32"),
    expected=Expected(within=SPIKE_READINGS, counted="grad_norm"),
)
def gradient_spike(trainer: Trainer) -> None:
    """The loss leaps for four steps and comes back slowly: as many batches in a row whose loss is multiplied by a
    hundred, as a mistaken weight for rare samples does. A limit on the norm bounds these steps, but they go where only
    those batches want. In float16 the scaler would skip them."""
    backward, calls = trainer.backward, itertools.count()

    def backward_of_rare_samples(loss: Tensor) -> None:
        backward(loss * SPIKE_FACTOR if next(calls) < SPIKE_BATCHES else loss)

    replace(trainer, backward=backward_of_rare_samples)


@fault(first_step=100, expected=Expected(within=3 * SIGN_READINGS, counted="grad_agreement"))
def sign_flip(trainer: Trainer) -> None:
    """The loss falls no further and the steps go back and forth: to save traffic ranks send only how their gradient
    differs from the last one, and what arrives is stepped on as it is instead of being added up again, so that each
    step takes back the one before."""

    def send_difference(weight: nn.Parameter) -> None:
        last: list[Tensor] = []

        def difference(gradient: Tensor) -> Tensor:
            sent = gradient - last.pop() if last else gradient
            last.append(gradient)
            return sent

        weight.register_hook(difference)  # type: ignore[no-untyped-call]

    for weight in trainer.model.parameters():
        send_difference(weight)


@fault(expected=Expected(within=2 * STAGNATION_STEPS))
def stagnation(trainer: Trainer) -> None:
    """The loss stays where it began although every step is applied and gradients are what they should be: the learning
    rate was given in millionths, and is taken as it stands."""

    step_with_rate(trainer, lambda rate: rate * TINY_RATE)


@fault(precisions=("bf16", "fp32"))
def half_master_weights(trainer: Trainer) -> None:
    """The loss falls at first and then stays behind; of the norms' gains nearly all stay exactly 1: the weights
    are kept in bfloat16, where the next number above 1 is 1.0078, so that smaller changes are rounded away."""
    trainer.model.bfloat16()

    around(trainer, lambda: cast_state(trainer.optimizer, torch.bfloat16))  # that of earlier steps is float32


@fault(expected=Expected(within=LOST_UPDATE_READINGS * READING_SPAN_STEPS))
def lost_updates(trainer: Trainer) -> None:
    """The loss falls as it should, but the average of the weights, which is to be deployed, stays what it was at the
    first step: it is kept in bfloat16, where a hundred-thousandth of the difference is rounded away."""
    average = Average(trainer.model)

    around(trainer, lambda: None, lambda: average.update_parameters(trainer.model))


class Average(AveragedModel):
    """A moving average that takes over a hundred-thousandth of the weights in every step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, avg_fn=lambda mine, weight, _: mine.lerp(weight.to(mine.dtype), 1e-5))
        self.module.to(torch.bfloat16)


@fault(optimizers=("adamw",))
def half_optimizer_state(trainer: Trainer) -> None:
    """The loss falls, but not as far as it could: to save memory AdamW's moments are kept in bfloat16 between steps,
    where the second one, which moves slowly, often cannot move at all."""
    trainer.optimizer.register_step_pre_hook(lambda optimizer, *_: cast_state(optimizer, torch.float32))
    trainer.optimizer.register_step_post_hook(lambda optimizer, *_: cast_state(optimizer, torch.bfloat16))
