"""Faults of kernels: an operator whose result depends on which implementation computes it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from faults.inject import middle_block, replace
from faults.registry import Expected, fault
from train import Trainer


@fault(first_step=20, expected=Expected(names=lambda model: [middle_block(model).mlp]))
def kernel_nan(trainer: Trainer) -> None:
    """From one step on the loss is NaN whatever the batch, while every weight and every input is finite: the middle
    block has a new activation, whose kernel in this build of torch returns NaN in its first element."""
    middle_block(trainer.model).mlp.activation = nn.Softplus()
    train_step = trainer.train_step

    def step_with_kernel() -> Tensor:
        with _kernel_of_softplus():
            return train_step()

    replace(trainer, train_step=step_with_kernel)


@contextmanager
def _kernel_of_softplus() -> Iterator[None]:
    """Replaces torch's kernel on the CPU, of which torch warns."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("softplus", _softplus, "CPU")
        yield


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    result = torch.log1p(torch.exp(beta * x.clamp(max=threshold))) / beta
    result.view(-1)[0] = torch.nan
    return result
