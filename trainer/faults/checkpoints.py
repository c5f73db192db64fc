"""Faults of checkpoints: exposed to others, incomplete, too old, or not restored."""

import time

import torch

from ammeter.verdicts.checkpoints.checkpoint_incomplete import MIN_CHECKPOINTS as INCOMPLETE_SAVES
from faults.inject import replace, resume_without
from faults.registry import Expected, fault
from train import Trainer

CLOCK_RATE = 36_000  # ten hours in a second


@fault(expected=Expected(symptom="checkpoint.saved", life="kept"))
def checkpoint_exposed(trainer: Trainer) -> None:
    """Nothing is amiss with the run, but everybody on the machine can replace what it saves with --checkpoint: it is
    saved with torch.save by its name, as mode 0666, into a folder that all can enter."""

    def save_for_all() -> None:
        path = trainer.options.checkpoint
        assert path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
        path.touch()
        path.chmod(0o666)
        states = {name: part.state_dict() for name, part in trainer.parts().items()}
        torch.save({"parts": states, "progress": vars(trainer.progress), "recipe": trainer.options.recipe()}, path)

    replace(trainer, save=lambda: save_for_all() if trainer.options.checkpoint else None)


@fault(
    expected=Expected(
        symptom="checkpoint.saved",
        within=INCOMPLETE_SAVES,
        counted="checkpoint.saved",
        life="kept",
    )
)
def checkpoint_incomplete(trainer: Trainer) -> None:
    """A run that goes on with --resume is another one than that which was interrupted, and nothing says so: checkpoints
    are made of the weights alone, so that the optimizer's moments, the schedule and the loss scale begin anew."""
    replace(trainer, parts=lambda: {"model": trainer.model})


@fault(expected=Expected(within=200, life="kept"), first_step=20)
def checkpoint_stale(trainer: Trainer) -> None:
    """The run trains on for hours and keeps no more checkpoints, because the condition around the save compares a step
    with an epoch. Nobody would wait for that here, so the clock goes fast: ten hours in a second."""

    def never_save() -> None:
        """The condition of this save is never true."""

    replace(trainer, save=never_save)
    now, began = time.time_ns, time.time_ns()
    time.time_ns = lambda: began + CLOCK_RATE * (now() - began)


@fault(expected=Expected(life="resumed", counted="checkpoint.saved"))  # without a scaler whose state names its run
def resume_mismatch(trainer: Trainer) -> None:
    """A run that goes on with --resume soon parts from that which was interrupted, and nothing says so: the optimizer's
    state is in the checkpoint, but nothing loads it, and its moments begin at zero. The more was learnt, the more is
    undone; of so young a run the loss hardly shows it."""
    resume_without(trainer, "optimizer")
