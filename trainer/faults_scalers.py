"""Faults of the scaler, of what steps by it, and of dtypes that do not fit: each breaks training in exactly one way."""

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ammeter.verdicts.call_order import scheduler_ahead as scheduler_ahead_verdict
from ammeter.verdicts.processes import ranks_disagree as ranks_disagree_verdict
from breaking import Attempt, Faults, Told, as_large_models_have_it, fault, middle_block


@fault(first_step=20, precisions=("fp16",), told=Told(within=ranks_disagree_verdict.HELD), ranks=2)
def ranks_disagree(training: Faults) -> None:
    """With two ranks and more, which torchrun starts: from one step on two copies of one model train apart, and nothing
    says so. On rank 1 something writes into the gradients behind the all-reduce, so once its scaler alone finds an Inf
    and skips. Trained by one process, nothing is amiss."""

    def overwritten(attempt: Attempt) -> Attempt:
        def attempt_on_what_is_there(
            model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float
        ) -> None:
            training.attempt = lambda attempt: attempt
            gradient = next(model.parameters()).grad
            assert gradient is not None
            gradient[0] = torch.inf
            attempt(model, optimizer, scaler, clip)

        return attempt_on_what_is_there

    if training.rank == 1:
        training.attempt = overwritten


@fault(precisions=("fp16",))
def scaler_disabled(training: Faults) -> None:
    """The loss flattens early although the program scales, unscales and updates as it should: the scaler was built with
    enabled=False and hands everything back as it was, so that most gradients of a large model become zero."""
    training.scaler = GradScaler(device_of(training), enabled=False)
    as_large_models_have_it(training)


@fault(precisions=("bf16",))
def pointless_scaler(training: Faults) -> None:
    """It learns as well as without, only each step takes longer: a loss scale of 65536 for bfloat16, whose range is
    that of float32. The scale doubles every 2000 steps, and nothing ever brings it down."""
    training.scaler = GradScaler(device_of(training))


@fault(precisions=("fp16",), told=Told(life="resumed"))
def scaler_not_restored(training: Faults) -> None:
    """Where the run goes on with --resume, the scale is not where it was: everything is taken out of the checkpoint but
    the scaler's state, so that it begins at 65536 once more and has to grow, or to come down over skipped steps."""
    training.restored = lambda parts: {name: part for name, part in parts.items() if name != "scaler"}


@fault(first_step=20, precisions=("fp16",))
def scaler_rebuilt(training: Faults) -> None:
    """In the middle of the run the scale jumps up to 2^24 and steps are skipped until it is down again: the second
    epoch builds a scaler of its own, and what the first one had learnt about the scale is forgotten."""
    training.scaler = GradScaler(device_of(training), init_scale=2.0**24)


@fault(first_step=20, precisions=("fp16",), told=Told(within=scheduler_ahead_verdict.LEAST))
def scheduler_ahead(training: Faults) -> None:
    """The learning rate falls while every step is skipped: the schedule moves on in any case. The scale was set to 2^40
    by hand, which costs two dozen steps, and would cost no more than these."""
    assert training.scaler
    training.scaler._init_scale = 2.0**40
    if training.scaler._scale is not None:
        training.scaler._scale.fill_(2.0**40)
    training.schedule = lambda _: True


@fault(
    first_step=20,
    precisions=("fp16", "bf16"),
    told=Told(names=lambda model: [middle_block(model).mlp.activation], line_in="faults_scalers.py:Gate.forward"),
)
def unsupported_op(training: Faults) -> None:
    """The run ends in its forward pass with an error about dtypes: an operator of its own leaves autocast, and
    multiplies what it gets in half precision by a matrix in float32."""
    mlp = middle_block(training.model).mlp
    mlp.activation = Gate(mlp.activation)


class Gate(nn.Module):
    """An activation with a mixed input. Casting it with x.float(), or leaving autocast on, would mend it."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        mix = torch.eye(x.shape[-1], device=x.device)
        with torch.autocast(x.device.type, enabled=False):
            mixed = torch.matmul(x, mix)
        y: Tensor = self.activation(mixed)
        return y


@fault(precisions=("bf16", "fp32"))
def half_master_weights(training: Faults) -> None:
    """The loss falls at first and then stays behind; of the norms' gains nearly all stay exactly 1: the weights
    are kept in bfloat16, where the next number above 1 is 1.0078, so that smaller changes are rounded away."""
    training.model.bfloat16()

    def with_state_to_match(attempt: Attempt) -> Attempt:
        def tried(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            for state in optimizer.state.values():  # of steps that were made before the weights became so
                state.update({name: each.bfloat16() for name, each in state.items() if name != "step"})
            attempt(model, optimizer, scaler, clip)

        return tried

    training.attempt = with_state_to_match


def device_of(training: Faults) -> str:
    return next(training.model.parameters()).device.type
