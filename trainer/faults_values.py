"""Faults in the numbers themselves: weights, optimizer state, scale and activations that a precision cannot hold."""

import torch

from breaking import Faults, fault, middle_block


@fault(first_step=20, precisions=("fp16",))
def nonfinite_weights(training: Faults) -> None:
    """From one step on the loss is NaN whatever the batch, every step is skipped and the scale falls: a faulty memory
    has turned one element of one weight into NaN, which no skipped step can mend."""
    with torch.no_grad():
        middle_block(training.model).mlp.fc.weight[3, 5] = torch.nan
