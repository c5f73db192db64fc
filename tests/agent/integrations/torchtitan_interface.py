"""The parts of torchtitan that the integration uses, as torchtitan 0.3.0 has them: for tests of what is rare in it.

test_torchtitan_trainer.py trains with torchtitan itself. Names, arguments and the order of calls are those of its
Trainer, MetricsProcessor, BaseLogger, LoggerContainer and OptimizersContainer.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.agent.integrations.trained import STEPS, Network, batches


class BaseLogger:
    def log(self, metrics: dict[str, Any], step: int) -> None:
        pass

    def close(self) -> None:
        pass


class LoggerContainer(BaseLogger):
    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int]] = []
        self.is_closed = False

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.logged.append((metrics, step))

    def close(self) -> None:
        self.is_closed = True


class OptimizersContainer(torch.optim.Optimizer):
    """Several optimizers as one, which steps when each of them has."""

    def __init__(self, model_parts: list[torch.nn.Module]) -> None:
        parameters = [parameter for part in model_parts for parameter in part.parameters()]
        halves = parameters[:2], parameters[2:]
        self.optimizers = [torch.optim.AdamW(half, lr=1e-3) for half in halves]
        torch.optim.Optimizer.__init__(self, parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def init_state(self) -> None:
        """A step of zeros, which creates the state that a checkpoint is loaded into."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
                group["lr"] = 0.0
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = 1e-3


class MetricsProcessor:
    def __init__(self) -> None:
        self.logger: BaseLogger = LoggerContainer()

    def log(self, step: int, global_avg_loss: float, grad_norm: float) -> None:
        self.logger.log({"loss_metrics/global_avg_loss": global_avg_loss, "grad_norm": grad_norm}, step)

    def log_validation(self, loss: float, step: int) -> None:
        self.logger.log({"validation_metrics/loss": loss}, step)

    def close(self) -> None:
        self.logger.close()


class Config:
    def build(self) -> Trainer:
        return Trainer()

    def to_dict(self) -> dict[str, Any]:
        return {"training": {"steps": STEPS, "max_norm": 1.0}, "model_spec": {"name": "llama3", "model": object()}}


class Trainer:
    def __init__(self, bad_from: int | None = None, loaded_step: int = 0) -> None:
        self.config = Config()
        self.model_parts: list[torch.nn.Module] = [Network(bad_from)]
        self.metrics_processor = MetricsProcessor()
        self.optimizers = OptimizersContainer(self.model_parts)
        self.step, self.loaded_step = 0, loaded_step

    def train(self) -> None:
        if self.loaded_step:
            self.optimizers.init_state()
            self.step = self.loaded_step
        data = iter(batches())
        while self.step < self.loaded_step + STEPS:
            self.step += 1
            self.train_step(data)
            if self.step % 8 == 0:
                self.metrics_processor.log_validation(0.5, self.step)

    def train_step(self, data_iterator: Any) -> None:
        self.optimizers.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model_parts[0](**next(data_iterator))["loss"]
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model_parts[0].parameters(), 1.0)
        self.optimizers.step()
        if self.step == 1 or self.step % 4 == 0:
            self.metrics_processor.log(self.step, loss.item(), norm.item())

    def close(self) -> None:
        self.metrics_processor.close()


def install(patch: pytest.MonkeyPatch) -> None:
    """Makes these classes importable under the names of torchtitan."""
    contents: dict[str, dict[str, Any]] = {
        "torchtitan": {"__version__": "0.3.0"},
        "torchtitan.components": {},
        "torchtitan.components.metrics": {"BaseLogger": BaseLogger},
        "torchtitan.trainer": {"Trainer": Trainer},
    }
    patch.delitem(sys.modules, "ammeter.integrations.torchtitan", raising=False)
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        patch.setitem(sys.modules, name, module)
