"""Faults of what a program computes beside its training."""

import copy

import torch
from torch import Tensor, nn

from ammeter.verdicts.evaluation.nonfinite_validation import FINITE_LOSSES
from faults.inject import middle_block, replace
from faults.registry import Expected, fault
from train import Trainer


@fault(
    first_step=20,
    expected=Expected(
        names=lambda model: [middle_block(model).mlp.activation],
        symptom="evaluation.nonfinite",
        within=FINITE_LOSSES,
    ),
)
def nonfinite_validation(trainer: Trainer) -> None:
    """Each validation loss is NaN from one step on, and the training loss goes on as before: in evaluation the middle
    block's activation is divided by a limit that a calibration should have measured, and which is still zero."""
    mlp = middle_block(trainer.model).mlp
    mlp.activation = Calibrated(mlp.activation)


class Calibrated(nn.Module):
    """An activation as a share of its limit, in evaluation alone."""

    def __init__(self, activation: nn.Module, limit: float = 0.0) -> None:
        super().__init__()
        self.activation, self.limit = activation, limit

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(x)
        return y if self.training else y / self.limit


SENT_STEPS = 10
"""Steps in which the sampler of rollout_mismatch still receives the weights."""


@fault(first_step=20, expected=Expected(symptom="", within=40))
def rollout_mismatch(trainer: Trainer) -> None:
    """A sampler in bfloat16 gives the targets the log-probabilities that the trainer gives them, and after some steps
    the two part: the trainer no longer sends its weights. The training goes on as before."""
    train_step, sampler = trainer.train_step, copy.deepcopy(trainer.model).eval()
    inputs, targets = trainer.validation_set[0]
    first_step = trainer.progress.step

    def nll(model: nn.Module) -> Tensor:
        with torch.no_grad(), trainer.autocast():
            loss: Tensor = model.eval()(inputs, targets)
        return loss.float()

    def compared_step() -> Tensor:
        loss = train_step()
        if trainer.progress.step < first_step + SENT_STEPS:
            sampler.load_state_dict({name: value.bfloat16() for name, value in trainer.model.state_dict().items()})
        difference = (nll(trainer.model) - nll(sampler)).abs()
        trainer.model.train()
        trainer.run.log(rollout_logprob_diff=difference)
        return loss

    replace(trainer, train_step=compared_step)
