"""Faults that show beside another run only, the one that `against` trains: alone nothing seems to be amiss."""

import random

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ammeter.verdicts.baseline import not_reproducible as not_reproducible_verdict
from ammeter.verdicts.baseline import validation_drift as validation_drift_verdict
from ammeter.verdicts.framework import run_comparison
from breaking import Attempt, Batch, Faults, Told, fault


@fault(
    precisions=("bf16", "fp16"),
    told=Told(within=run_comparison.WARM_UP + run_comparison.ENOUGH),
    against=("--precision", "fp32"),
)
def slower_than_fp32(_: Faults) -> None:
    """A step takes longer in half precision than in float32, although all its matrix products run in it: somebody who
    looked for a NaN has left torch.autograd's anomaly detection on, for half precision only."""
    torch.autograd.set_detect_anomaly(True, check_nan=False)  # where it raises, the run is over and not slow


@fault(
    precisions=("bf16", "fp16"),
    told=Told(within=validation_drift_verdict.IN_A_ROW, counted="val_loss"),
    against=("--precision", "fp32"),
)
def validation_drift(training: Faults) -> None:
    """It learns, but validation stays behind that of the same run in float32: the branch for half precision still
    divides the learning rate by thirty, from a time when training diverged without it."""

    def carefully(attempt: Attempt) -> Attempt:
        def attempt_carefully(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate / 30
            attempt(model, optimizer, scaler, clip)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

        return attempt_carefully

    training.attempt = carefully


@fault(precisions=("bf16", "fp16"), against=("--precision", "fp32", "--batch", "2"))
def not_comparable(_: Faults) -> None:
    """Nothing is amiss with the run. What it is held against had other batches, so neither its speed nor its validation
    says anything of half precision."""


@fault(first_step=5, told=Told(within=not_reproducible_verdict.ENOUGH), against=())
def not_reproducible(training: Faults) -> None:
    """Two runs with one seed and the same settings part, in the last digits first: the order of the samples in a batch
    is drawn from a generator that nobody seeds, as with workers that give back what is ready first."""
    unseeded = random.SystemRandom()

    def shuffled(batch: Batch) -> Batch:
        order = list(range(len(batch[0])))
        unseeded.shuffle(order)
        return batch[0][order], batch[1][order]

    training.batch = shuffled
