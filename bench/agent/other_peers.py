"""Peers other than Ammeter: methods and tools that people use today for the same questions.

A peer whose package is not installed raises ImportError; requirements-dev.txt and bench/requirements.txt name the
packages.
"""

from __future__ import annotations

import logging
import os
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bench.agent.peers import NOT_PROVIDED, Coverage, Peer
from bench.agent.training import Training


class Norms(Peer):
    name = "norm().item() of each gradient"
    coverage = Coverage(norms="each step")

    def on_gradients(self) -> None:
        self.norms = [
            weight.grad.norm().item() for weight in self.training.model.parameters() if weight.grad is not None
        ]


class DetectAnomaly(Peer):
    name = "torch.autograd.detect_anomaly"
    coverage = Coverage(place="backward")

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
    coverage = Coverage(place="forward, backward")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._largest: list[torch.Tensor] = []

    def _forward(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self._largest.append(output.detach().abs().max().float())

    def _backward(self, module: torch.nn.Module, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        self._largest += [output.abs().max().float() for output in outputs if output is not None]

    def on_step_end(self, loss: torch.Tensor) -> None:
        self.largest = torch.stack(self._largest).tolist()
        self._largest.clear()


class UnderflowOverflow(Peer):
    """Cannot remove its hooks."""

    name = "transformers DebugUnderflowOverflow"
    coverage = Coverage(place="forward")
    own_model = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._debug_class = import_module("transformers.debug_utils").DebugUnderflowOverflow

    def attach(self) -> None:
        self._debug = self._debug_class(self.training.model)


class TensorBoard(Peer):
    name = "TensorBoard histograms of gradients"
    coverage = Coverage(statistics="histogram")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._writer = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
        self._step = 0

    def on_gradients(self) -> None:
        self._step += 1
        for name, weight in self.training.model.named_parameters():
            self._writer.add_histogram(name, weight.grad, self._step)

    def close(self) -> dict[str, float]:
        self._writer.close()
        return {}


class Wandb(Peer):
    """Offline. It counts steps from its attachment, so it stays attached."""

    name = 'wandb.watch(log="all"), each step'
    coverage = Coverage(statistics="histogram")
    own_model = True

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        wandb = import_module("wandb")
        self._run = wandb.init(
            project="bench",
            dir=str(folder),
            mode="offline",
            reinit="finish_previous",  # its hooks log to the open run, whichever run installed them
            settings=wandb.Settings(silent=True, console="off"),
        )

    def attach(self) -> None:
        self._run.watch(self.training.model, log="all", log_freq=self.period)

    def on_step_end(self, loss: torch.Tensor) -> None:
        self._run.log({"loss": loss.item()})

    def close(self) -> dict[str, float]:
        self._run.unwatch(self.training.model)
        self._run.finish()
        return {}


class Wandb100(Wandb):
    name = 'wandb.watch(log="all"), each 100th step'
    coverage = Coverage(statistics="histogram, 1 of 100")
    period = 100


class Mlflow(Peer):
    """Stores 404 computed numbers in SQLite, as many as four for each of about a hundred tensors."""

    name = "MLflow, 404 metrics"
    coverage = Coverage(NOT_PROVIDED, "yours, stored")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        self._mlflow = import_module("mlflow")
        for logger in ("mlflow", "alembic"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        self._mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        experiment = self._mlflow.create_experiment("bench", artifact_location=folder.as_uri())
        self._mlflow.start_run(experiment_id=experiment)
        self._step = 0

    def on_step_end(self, loss: torch.Tensor) -> None:
        self._step += 1
        value = loss.item()
        self._mlflow.log_metrics({f"metric_{number}": value + number for number in range(404)}, step=self._step)

    def close(self) -> dict[str, float]:
        self._mlflow.end_run()
        return {}


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
