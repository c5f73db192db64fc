"""Trains a model for a few watched steps, in one dtype and size; runs in a process of its own."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

import ammeter
from ammeter.preflight import factory
from ammeter.preflight.factory import Example

TIMED_STEPS = 3
"""Steps without Ammeter after the watched ones, whose median is the step time."""

RSS_UNIT_BYTES = 1024
"""Unit of ru_maxrss on Linux."""


def of_factory(
    spelling: str, given: Mapping[str, Any], dtype: str, steps: int, seed: int, lr: float, folder: str
) -> dict[str, Any]:
    """Trains with AdamW, with a GradScaler in float16, on the same batch in each step.

    Returns:
        path: the run's folder. losses: that of each step. skipped: steps that GradScaler skipped. seconds: of a step.
        memory: peak in bytes, on a GPU of its tensors, else the growth of the process.

    Raises:
        BadFactory: the factory gives no model.
    """
    torch.manual_seed(seed)
    before = _peak_bytes("cpu")
    example = factory.make(spelling, given)
    trained = [parameter for parameter in example.module.parameters() if parameter.requires_grad]
    if not trained:
        raise factory.BadFactory(f"{spelling} returned a model without a weight to train; return one with weights")
    device = trained[0].device.type
    optimizer = torch.optim.AdamW(trained, lr=lr)
    scaler = torch.amp.GradScaler(device) if dtype == "float16" else None
    run = ammeter.watch(example.module, optimizer, scaler, dir=folder, name=dtype, preset="full", budget=1.0)
    losses = []
    for _ in range(steps):
        losses.append(float(_step(example, optimizer, scaler, device, dtype)))
    run.close()
    seconds = [_timed(example, optimizer, scaler, device, dtype) for _ in range(TIMED_STEPS)]
    memory = _peak_bytes(device) - (before if device == "cpu" else 0)
    return {
        "path": str(run.path or ""),
        "losses": [repr(loss) for loss in losses],
        "seconds": statistics.median(seconds),
        "memory": memory,
        "device": device,
    }


def _step(
    example: Example, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, device: str, dtype: str
) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast(device, getattr(torch, dtype), enabled=dtype != "float32"):
        loss = example.loss()
    if scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    else:
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    return loss.detach()


def _timed(
    example: Example, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, device: str, dtype: str
) -> float:
    began = time.perf_counter()
    float(_step(example, optimizer, scaler, device, dtype))  # waits for the device
    return time.perf_counter() - began


def _peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES
