"""Faults that show only beside a baseline run, the one that `against` trains. Alone nothing seems to be amiss."""

import random

import torch

from ammeter.verdicts.baseline.not_reproducible import MIN_COMMON_LOSSES as DIFFERENT_STEPS
from ammeter.verdicts.baseline.validation_drift import MIN_VALIDATIONS as DRIFTED_VALIDATIONS
from ammeter.verdicts.framework.run_comparison import MIN_STEPS as COMPARED_STEPS
from ammeter.verdicts.framework.run_comparison import WARM_UP_STEPS
from data import Batch
from faults.inject import replace, step_with_rate
from faults.registry import Expected, fault
from train import Trainer

RATE_DIVISOR = 30


@fault(
    precisions=("bf16", "fp16"),
    expected=Expected(within=WARM_UP_STEPS + COMPARED_STEPS),
    against=("--precision", "fp32"),
)
def slower_than_fp32(_: Trainer) -> None:
    """A step takes longer in half precision than in float32, although all its matrix products run in it: somebody who
    looked for a NaN has left torch.autograd's anomaly detection on, for half precision only."""
    torch.autograd.set_detect_anomaly(True, check_nan=False)  # where it raises, the run is over and not slow


@fault(
    precisions=("bf16", "fp16"),
    expected=Expected(within=DRIFTED_VALIDATIONS, counted="val_loss"),
    against=("--precision", "fp32"),
)
def validation_drift(trainer: Trainer) -> None:
    """It learns, but validation stays behind that of the same run in float32: the branch for half precision still
    divides the learning rate by thirty, from a time when training diverged without it."""
    step_with_rate(trainer, lambda rate: rate / RATE_DIVISOR)


@fault(precisions=("bf16", "fp16"), against=("--precision", "fp32", "--batch", "2"))
def not_comparable(_: Trainer) -> None:
    """Nothing is amiss with the run. Its baseline had other batches, so neither its speed nor its validation says
    anything of half precision."""


@fault(first_step=5, expected=Expected(within=DIFFERENT_STEPS), against=())
def not_reproducible(trainer: Trainer) -> None:
    """Two runs with one seed and the same settings part, in the last digits first: the order of the samples in a batch
    is drawn from a generator that nobody seeds, as with workers that give back what is ready first."""
    unseeded = random.SystemRandom()
    next_batch = trainer.next_batch

    def shuffled_batch() -> Batch:
        inputs, targets = next_batch()
        order = list(range(len(inputs)))
        unseeded.shuffle(order)
        return inputs[order], targets[order]

    replace(trainer, next_batch=shuffled_batch)
