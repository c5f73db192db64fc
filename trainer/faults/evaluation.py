"""Faults of what a program computes beside its training."""

from torch import Tensor, nn

from ammeter.verdicts.evaluation.nonfinite_validation import FINITE_LOSSES
from faults.inject import middle_block
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
