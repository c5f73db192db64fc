"""Runs the reference trainer in this process with faults and guards, and resumes from its checkpoints."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ammeter
from ammeter import journal
from ammeter.journal.find import find_runs
from ammeter.wire.columns import measured, view
from ammeter.wire.frames import Hello, Schema, Steps
from bench.zoo.guards.healthy_runs import guard_events
from bench.zoo.trainer import REGISTRY, broken, checkpoint, read_options


@dataclass(frozen=True)
class Training:
    """A training without faults and guards."""

    arch: str
    steps: int
    seed: int

    def arguments(self, path: Path) -> list[str]:
        """Arguments of the trainer. path: its checkpoint file."""
        sizes = f"--tiny --arch {self.arch} --steps {self.steps} --seed {self.seed}".split()
        return [*sizes, "--checkpoint", str(path), "--checkpoint-every", "25"]


@dataclass
class Run:
    """A finished run: validation loss, events of guards, and the exception that stopped it."""

    loss: float = math.nan
    events: tuple[dict[str, Any], ...] = ()
    stopped: ammeter.Stopped | None = None
    latest: Path | None = None

    def actions(self) -> list[dict[str, Any]]:
        """The actions other than regular checkpoints."""
        return [event for event in self.events if event["action"] != "wrote"]


def run(
    training: Training, folder: Path, guards: tuple[str, ...] = (), fault: str = "", precision: str = "fp16"
) -> Run:
    """Runs a watched training in this process with its journal below the folder."""
    if precision != "fp16":
        name = fault.partition("@")[0]
        REGISTRY[name] = replace(REGISTRY[name], precisions=("fp16", precision))
    arguments = [*training.arguments(folder / "own.pt"), "--precision", precision]
    arguments += [word for guard in guards for word in ("--guard", guard)] + (["--fault", fault] if fault else [])
    done = Run()
    try:
        done.loss = trained(arguments, folder)
    except ammeter.Stopped as stopped:
        done.stopped = stopped
    done.events = tuple(event.data for event in guard_events(folder / "journals"))
    written = [event["to"] for event in done.events if event["action"] == "wrote"]
    done.latest = Path(written[-1]) if written else None
    return done


@functools.cache
def healthy_run(training: Training, guards: tuple[str, ...] = ()) -> Run:
    with tempfile.TemporaryDirectory() as name:
        return run(training, Path(name), guards)


def trained(arguments: list[str], folder: Path) -> float:
    """The validation loss at the end. Raises ammeter.Stopped."""
    os.environ["AMMETER_DIR"] = str(folder / "journals")
    with contextlib.redirect_stdout(io.StringIO()):
        return broken.main(arguments).val_loss


def losses(folder: Path) -> list[float]:
    """The losses of the applied steps in the one run below a folder."""
    found: list[float] = []
    schema = Schema()
    for entry in journal.read(journal.streams(find_runs(folder / "journals")[0])[0]):
        if isinstance(entry.frame, Hello):
            schema = entry.frame.schema
        elif isinstance(entry.frame, Steps):
            rows = view(schema, [entry.frame])
            loss = rows.scalar("loss")
            found += loss[measured(loss) & (rows.scalar("applied") > 0)].astype(np.float64).tolist()
    return found


def converted(training: Training, guarded: Run, folder: Path) -> Path:
    """Converts the checkpoint that the guard names to the trainer's format."""
    named = guarded.stopped.checkpoint if guarded.stopped else guarded.latest
    assert named is not None
    saved = torch.load(named, weights_only=True)
    scheduler = saved["parts"]["scheduler"]
    parts = {name: saved[f"{name}s"][0] for name in ("model", "optimizer", "scaler")}
    progress = {"step": saved["step"], "applied": scheduler["last_epoch"], "batches": saved["step"]}
    recipe = read_options(training.arguments(folder / "own.pt")).recipe()
    state = {"parts": {**parts, "scheduler": scheduler}, "progress": progress, "recipe": recipe}
    checkpoint.write(folder / "own.pt", {**state, "random": saved["random"]})
    return folder / "own.pt"


def loss_when_resumed(training: Training, path: Path) -> float:
    """The validation loss of a healthy run that resumes from this checkpoint, for at least one step."""
    done = torch.load(path, weights_only=True)["progress"]["step"]
    longer = replace(training, steps=max(training.steps, done + 1))
    return trained([*longer.arguments(path), "--resume"], path.parent)
