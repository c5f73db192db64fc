"""Faults in the numbers themselves: weights, optimizer state, scale and activations that a precision cannot hold."""

import torch

from breaking import Faults, fault, middle_block


@fault(first_step=20, precisions=("fp16",))
def nonfinite_weights(training: Faults) -> None:
    """From one step on the loss is NaN whatever the batch, every step is skipped and the scale falls: a faulty memory
    has turned one element of one weight into NaN, which no skipped step can mend."""
    with torch.no_grad():
        middle_block(training.model).mlp.fc.weight[3, 5] = torch.nan


@fault(first_step=20, precisions=("fp16",))
def scale_underflowed(training: Faults) -> None:
    """One step is applied as if nothing were wrong and leaves only NaN in the weights: the scaler got back the scale
    of a run that had collapsed, 2^-130, whose inverse is infinite."""
    assert training.scaler
    # Where the scale lives: update(new_scale=...) would count as one more update, and load_state_dict() as a resume.
    training.scaler._init_scale = 2.0**-130
    if training.scaler._scale is not None:
        training.scaler._scale.fill_(2.0**-130)
