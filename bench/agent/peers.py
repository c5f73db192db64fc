"""What is compared: Ammeter's presets and what people use today, one class each.

A peer that needs a package raises ImportError where it is not installed; bench/requirements.txt names them.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import ammeter
from ammeter import journal
from ammeter.wire.frames import SCALARS, Steps
from bench.agent.training import Training

NO = "–"


@dataclass(frozen=True)
class Gives:
    """What one has of it and when: norms of gradients, their full statistics, where a NaN was born, the loss scale."""

    norms: str = NO
    statistics: str = NO
    place: str = NO
    scale: str = NO


class Peer:
    """Attached to one training. own: what cannot be detached gets a model of its own, and keeps it to itself.

    period: steps from one of its heavy steps to the next.
    """

    name: str
    gives = Gives()
    own = False
    period = 1

    def __init__(self, training: Training, folder: Path) -> None:
        """folder: an empty one, for what it writes. Raises ImportError without the package it needs."""
        self.training = training

    def attach(self) -> None: ...

    def detach(self) -> None: ...

    def gradients(self) -> None:
        """Between clipping and the optimizer's step."""

    def stepped(self, loss: torch.Tensor) -> None:
        """After the step."""

    def close(self) -> dict[str, float]:
        """Ends it. What it says of itself."""
        return {}


class Nothing(Peer):
    """The same training on both sides: as far from 1 as its ratio is, any other may be by chance."""

    name = "nothing (how much the measurement itself wavers)"


class Ammeter(Peer):
    """One watched session; between its blocks it is unsubscribed."""

    name = "ammeter"
    gives = Gives("within budget", "within budget", "forward, backward", "each step")
    preset = "default"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._folder = folder
        self._run = ammeter.watch(
            training.model, training.optimizer, training.scaler, dir=folder, name="bench", preset=self.preset
        )
        session = self._run._session
        if session is None:
            raise RuntimeError("Ammeter did not start; unset AMMETER_DISABLE, and see its warning above")
        self._session = session
        session.unsubscribe()

    def attach(self) -> None:
        self._session.subscribe()

    def detach(self) -> None:
        self._session.unsubscribe()

    def stepped(self, loss: torch.Tensor) -> None:
        self._run.log(samples=self.training.kind.batch)

    def close(self) -> dict[str, float]:
        governor, faults = self._session.governor, self._session.faults
        self._run.close()
        if faults:
            raise RuntimeError(f"probes of Ammeter failed: {faults}; see its warning above")
        full, asked = governor.full.taken, max(1, governor.full.taken + governor.full.refused)
        read = {"norms": (full + governor.norms.taken) / asked, "statistics": full / asked}
        return {**read, **own_cost(self._folder)}


class AmmeterLight(Ammeter):
    name = "ammeter, preset light"
    gives = Gives("within budget", NO, "forward, backward", "each step")
    preset = "light"


class AmmeterFull(Ammeter):
    name = "ammeter, preset full"
    gives = Gives("each step", "each step", "forward, backward", "each step")
    preset = "full"


class Norms(Peer):
    name = "norm().item() of each gradient"
    gives = Gives(norms="each step")

    def gradients(self) -> None:
        self.norms = [each.grad.norm().item() for each in self.training.model.parameters() if each.grad is not None]


class DetectAnomaly(Peer):
    name = "torch.autograd.detect_anomaly"
    gives = Gives(place="backward")

    def attach(self) -> None:
        torch.autograd.set_detect_anomaly(True)

    def detach(self) -> None:
        torch.autograd.set_detect_anomaly(False)


class EmptyHooks(Peer):
    """A forward and a backward hook on every module."""

    name = "module hooks that do nothing"

    def attach(self) -> None:
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        self._hooks = [
            hook
            for module in self.training.model.modules()
            for hook in (
                module.register_forward_hook(self._forward),
                module.register_full_backward_hook(self._backward),
            )
        ]

    def detach(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _forward(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None: ...

    def _backward(self, module: torch.nn.Module, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None: ...


class AbsmaxHooks(EmptyHooks):
    name = "module hooks, abs().max()"
    gives = Gives(place="forward, backward")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._largest: list[torch.Tensor] = []

    def _forward(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self._largest.append(output.detach().abs().max().float())

    def _backward(self, module: torch.nn.Module, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        self._largest += [each.abs().max().float() for each in outputs if each is not None]

    def stepped(self, loss: torch.Tensor) -> None:
        self.largest = torch.stack(self._largest).tolist()
        self._largest.clear()


class UnderflowOverflow(Peer):
    """Keeps its hooks for good."""

    name = "transformers DebugUnderflowOverflow"
    gives = Gives(place="forward")
    own = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._kind = import_module("transformers.debug_utils").DebugUnderflowOverflow

    def attach(self) -> None:
        self._debug = self._kind(self.training.model)


class TensorBoard(Peer):
    name = "TensorBoard histograms of gradients"
    gives = Gives(statistics="histogram")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._writer = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
        self._step = 0

    def gradients(self) -> None:
        self._step += 1
        for name, weight in self.training.model.named_parameters():
            self._writer.add_histogram(name, weight.grad, self._step)

    def close(self) -> dict[str, float]:
        self._writer.close()
        return {}


class Wandb(Peer):
    """Offline. It counts steps from when it was attached, so it stays."""

    name = 'wandb.watch(log="all"), each step'
    gives = Gives(statistics="histogram")
    own = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        wandb = import_module("wandb")
        self._run = wandb.init(
            project="bench",
            dir=str(folder),
            mode="offline",
            reinit="finish_previous",  # its hooks log to the run that is open, whichever watches
            settings=wandb.Settings(silent=True, console="off"),
        )

    def attach(self) -> None:
        self._run.watch(self.training.model, log="all", log_freq=self.period)

    def stepped(self, loss: torch.Tensor) -> None:
        self._run.log({"loss": loss.item()})

    def close(self) -> dict[str, float]:
        self._run.unwatch(self.training.model)
        self._run.finish()
        return {}


class Wandb100(Wandb):
    name = 'wandb.watch(log="all"), each 100th step'
    gives = Gives(statistics="histogram, 1 of 100")
    period = 100


class Mlflow(Peer):
    """As many numbers as four for each of some hundred tensors, already computed, into SQLite."""

    name = "MLflow, 404 metrics"
    gives = Gives(NO, "yours, stored")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        self._mlflow = import_module("mlflow")
        for quiet in ("mlflow", "alembic"):
            logging.getLogger(quiet).setLevel(logging.ERROR)
        self._mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        experiment = self._mlflow.create_experiment("bench", artifact_location=folder.as_uri())
        self._mlflow.start_run(experiment_id=experiment)
        self._step = 0

    def stepped(self, loss: torch.Tensor) -> None:
        self._step += 1
        value = loss.item()
        self._mlflow.log_metrics({f"metric_{number}": value + number for number in range(404)}, step=self._step)

    def close(self) -> dict[str, float]:
        self._mlflow.end_run()
        return {}


PRESETS: tuple[type[Ammeter], ...] = (Ammeter, AmmeterLight, AmmeterFull)
OTHERS: tuple[type[Peer], ...] = (
    Norms,
    DetectAnomaly,
    EmptyHooks,
    AbsmaxHooks,
    UnderflowOverflow,
    TensorBoard,
    Wandb,
    Wandb100,
    Mlflow,
)


def own_cost(folder: Path) -> dict[str, float]:
    """What the rows of the journals below a folder say: shares of step time spent inside Ammeter, middle and mean."""
    overhead, seconds = (list(SCALARS).index(name) for name in ("overhead_seconds", "step_seconds"))
    rows = [
        np.frombuffer(entry.frame.values, "<f4")[[overhead, seconds]]
        for run in folder.iterdir()
        for stream in journal.streams(run)
        for entry in journal.read(stream)
        if isinstance(entry.frame, Steps)
    ]
    told = [(float(ours), float(whole)) for ours, whole in rows if ours >= 0 and whole > 0]
    if not told:
        raise RuntimeError(f"no row in {folder} says what it cost")
    ours, whole = (sum(each) for each in zip(*told, strict=True))
    return {"overhead": median(each / step for each, step in told), "mean_overhead": ours / whole}
