"""Faults of the run as a whole, its checkpoints, and gradients that jump: each breaks training in exactly one way."""

import itertools
import threading
from pathlib import Path

import torch
from torch import Tensor

from ammeter.verdicts.checkpoints import checkpoint_incomplete as checkpoint_incomplete_verdict
from ammeter.verdicts.dynamics import gradient_spike as gradient_spike_verdict
from breaking import Faults, Save, Told, fault
from checkpoint import Parts, Recipe

SPIKED = 4  # batches in a row


@fault(told=Told(symptom="checkpoint.saved", life="kept"))
def checkpoint_exposed(training: Faults) -> None:
    """Nothing is amiss with the run, but everybody on the machine can replace what it saves with --checkpoint: it is
    saved with torch.save by its name, as mode 0666, into a folder that all can enter."""

    def saved_for_all(_: Save) -> Save:
        def save(path: Path, parts: Parts, progress: dict[str, int], recipe: Recipe) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o755)
            path.touch()
            path.chmod(0o666)
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"parts": state, "progress": progress, "recipe": recipe}, path)

        return save

    training.save = saved_for_all


@fault(
    told=Told(
        symptom="checkpoint.saved",
        within=checkpoint_incomplete_verdict.ROUNDS,
        counted="checkpoint.saved",
        life="kept",
    )
)
def checkpoint_incomplete(training: Faults) -> None:
    """A run that goes on with --resume is another one than that which was interrupted, and nothing says so: checkpoints
    are made of the weights alone, so that the optimizer's moments, the schedule and the loss scale begin anew."""
    training.parts = training.restored = lambda parts: {"model": parts["model"]}


@fault(told=Told(life="resumed", counted="checkpoint.saved"))  # without a scaler that says whose life it goes on with
def resume_mismatch(training: Faults) -> None:
    """A run that goes on with --resume soon parts from that which was interrupted, and nothing says so: the optimizer's
    state is in the checkpoint, but nothing loads it, and its moments begin at zero. The more was learnt, the more is
    undone; of so young a run the loss hardly shows it."""
    training.restored = lambda parts: {name: part for name, part in parts.items() if name != "optimizer"}


@fault(first_step=40)
def run_stalled(training: Faults) -> None:
    """The process is there and does nothing, for ever: it waits for a batch that no loader will bring. Nothing is said,
    and no error comes; end it by hand."""

    def never(_: object) -> tuple[Tensor, Tensor]:
        threading.Event().wait()
        raise AssertionError("nobody sets it")

    training.batch = never


@fault(first_step=80, precisions=("bf16", "fp32"), told=Told(within=gradient_spike_verdict.AMONG, counted="grad_norm"))
def gradient_spike(training: Faults) -> None:
    """The loss leaps for four steps and comes back slowly: as many batches in a row whose loss is multiplied by a
    hundred, as a mistaken weight for rare samples does. A limit on the norm bounds these steps, but they go where only
    those batches want. In float16 the scaler would skip them."""
    asked = itertools.count()
    training.loss = lambda loss: loss * 100 if next(asked) < SPIKED else loss
