"""What the recipe uses of DeepSpeed: an engine with float32 copies of the weights and a scaler of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch

from tests.agent.integrations import own_scalers
from tests.agent.integrations.own_scalers import LikeDeepSpeed, MixedPrecisionOptimizer

own_scalers.GROWTH_INTERVAL = 1000  # loss_scale_window of DeepSpeed


class LossScalerBase(LikeDeepSpeed):
    """Where and as what `ammeter run` looks for the scaler."""


sys.modules["deepspeed.runtime.fp16.loss_scaler"] = ModuleType("deepspeed.runtime.fp16.loss_scaler")
sys.modules["deepspeed.runtime.fp16.loss_scaler"].__dict__["LossScalerBase"] = LossScalerBase


class Engine:
    device = torch.device("cpu")

    def __init__(self, module: torch.nn.Module, optimizer: MixedPrecisionOptimizer) -> None:
        self.module, self.optimizer = module, optimizer

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self.module(*inputs)

    def backward(self, loss: torch.Tensor) -> None:
        self.optimizer.backward(loss)

    def step(self) -> None:
        self.optimizer.step()


def initialize(
    *, model: torch.nn.Module, model_parameters: Iterable[torch.nn.Parameter], config: Mapping[str, Any]
) -> tuple[Engine, MixedPrecisionOptimizer, None, None]:
    lr = config["optimizer"]["params"]["lr"]
    model.half()
    scaler = LossScalerBase(2.0 ** config["fp16"]["initial_scale_power"])
    optimizer = MixedPrecisionOptimizer(torch.optim.AdamW(list(model_parameters), lr=lr), scaler)
    return Engine(model, optimizer), optimizer, None, None
