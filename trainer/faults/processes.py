"""Faults of processes: one is killed, one stands still, ranks train apart, or the agent fails."""

import os
import signal
import threading
import weakref

import torch

import ddp
from ammeter.verdicts.processes.ranks_disagree import MIN_DIFFERENT_STEPS as RANK_STEPS
from faults.inject import replace
from faults.registry import Expected, fault
from train import Trainer


@fault(first_step=20, precisions=("fp16",), expected=Expected(within=RANK_STEPS), ranks=2)
def ranks_disagree(trainer: Trainer) -> None:
    """With two ranks and more, which torchrun starts: from one step on two copies of one model train apart, and nothing
    says so. On rank 1 something writes into the gradients after the all-reduce, so once its scaler alone finds an Inf
    and skips. Trained by one process, nothing is amiss."""
    apply_gradients = trainer.apply_gradients

    def overwrite_once() -> None:
        replace(trainer, apply_gradients=apply_gradients)
        gradient = next(trainer.model.parameters()).grad
        assert gradient is not None
        gradient[0] = torch.inf
        apply_gradients()

    if trainer.rank == 1:
        replace(trainer, apply_gradients=overwrite_once)


@fault(first_step=20, expected=Expected(within=16), ranks=2)
def half_reduction(trainer: Trainer) -> None:
    """With two ranks and more: the loss falls as before, but with every further rank training becomes less stable. To
    save half of the traffic, gradients are cast to bfloat16 before the all-reduce. Trained by one process, nothing is
    amiss."""
    accumulate_gradients = trainer.accumulate_gradients

    def reduce_in_bfloat16() -> torch.Tensor:
        with ddp.sync_gradients(trainer.network, enabled=False):
            loss = accumulate_gradients()
        for weight in trainer.model.parameters():
            if weight.grad is not None:
                short = weight.grad.bfloat16()
                torch.distributed.all_reduce(short)
                weight.grad = short.float() / trainer.ranks
        return loss

    if trainer.ranks > 1:
        replace(trainer, accumulate_gradients=reduce_in_bfloat16)


@fault(first_step=20, precisions=("fp16",), expected=Expected(within=8), ranks=2)
def broken_in_reduction(trainer: Trainer) -> None:
    """With two ranks and more: each rank computes finite gradients, and from one step on every step is skipped. To
    protect them from underflow in the all-reduce, gradients are multiplied by 2^140 and limited to 3e38 before it, and
    the sum of two such numbers is Inf. Trained by one process, nothing is amiss."""
    accumulate_gradients = trainer.accumulate_gradients

    def reduce_large_numbers() -> torch.Tensor:
        with ddp.sync_gradients(trainer.network, enabled=False):
            loss = accumulate_gradients()
        for weight in trainer.model.parameters():
            if weight.grad is not None:
                large = (weight.grad * 2.0**70 * 2.0**70).clamp(-3e38, 3e38)
                torch.distributed.all_reduce(large)
                weight.grad = large * 2.0**-70 * 2.0**-70 / trainer.ranks
        return loss

    if trainer.ranks > 1:
        replace(trainer, accumulate_gradients=reduce_large_numbers)


@fault(first_step=40)
def run_stalled(trainer: Trainer) -> None:
    """The process is there and does nothing, for ever: it waits for a batch that no loader will bring. Nothing is said,
    and no error comes; end it by hand."""
    replace(trainer, next_batch=threading.Event().wait)


@fault(first_step=40)
def run_lost(_: Trainer) -> None:
    """The process is gone from one moment to the next, without a word: SIGKILL, as the OOM killer sends it."""
    os.kill(os.getpid(), signal.SIGKILL)


@fault(first_step=20)
def agent_blind(trainer: Trainer) -> None:
    """The run trains on, but the curve of samples ends: the number that run.log gets raises an error at every use, as a
    proxy does whose object is gone."""
    trainer.samples_per_step = weakref.proxy(Metric())


class Metric:
    """A number of the program's own."""
