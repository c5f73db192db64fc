"""Saves and restores a run, so that it continues with exactly the same numbers.

A checkpoint is one file: complete or absent, and readable only by its owner.
"""

import os
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from options import Options

Parts = dict[str, Any]  # objects with state_dict() and load_state_dict()


@dataclass
class Progress:
    """Position of the run: the part of its state that no torch object has."""

    step: int = 0  # attempts of the optimizer, applied or skipped
    applied: int = 0
    batches: int = 0

    def count_applied(self, *_: Any) -> None:
        """Counts a call of optimizer.step(), as its post-hook."""
        self.applied += 1


def save(path: Path, parts: Parts, progress: Progress, options: Options) -> None:
    """Writes the state of all parts, the progress, and the recipe that the options give."""
    states = {name: part.state_dict() for name, part in parts.items()}
    write(path, {"parts": states, "progress": asdict(progress), "recipe": options.recipe(), "random": random_state()})


def restore(path: Path, parts: Parts, progress: Progress, options: Options) -> None:
    """Puts the parts, the progress and the random generators where they were.

    Raises:
        SystemExit: the run is complete, or has another recipe and would continue as a different run.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    refuse_other_run(path, saved, options)
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    vars(progress).update(saved["progress"])
    restore_random(saved["random"])


def refuse_other_run(path: Path, saved: dict[str, Any], options: Options) -> None:
    """Ends the program where the checkpoint does not fit the options."""
    for name, value in options.recipe().items():
        before = saved["recipe"][name]
        if before != value:
            sys.exit(
                f"train.py: error: {path} was made with --{name} {before}, not {value}; "
                f"use --{name} {before}, or another --checkpoint."
            )
    if saved["progress"]["step"] >= options.steps:
        sys.exit(f"{path} is at step {saved['progress']['step']} of {options.steps} already; raise --steps to go on.")


def write(path: Path, state: dict[str, Any]) -> None:
    """Replaces the file in one step, with mode 0600 whatever the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:  # created with 0600
        try:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # until then a power cut can undo the rename
    finally:
        os.close(folder)


def random_state() -> dict[str, Any]:
    """State of every generator that training may draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:  # a run may also continue without the GPU it started on
        torch.cuda.set_rng_state_all(state["cuda"])
