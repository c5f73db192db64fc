"""Finds the framework that drives an automatic run, so that `ammeter run` records what the framework knows.

Nothing is added to objects of the program: the framework's own calls that hand values to callbacks are observed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from ammeter.integrations.optimizer_chain import inside
from ammeter.tensors.live_objects import live_objects
from ammeter.torch_hooks.targets import innermost
from ammeter.watching.handle import Run

log = logging.getLogger("ammeter")

INTEGRATIONS = {
    "transformers.trainer": "huggingface",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "lightning.fabric.fabric": "fabric",
    "lightning_fabric.fabric": "fabric",
    "torchtitan.trainer": "torchtitan",
    "accelerate.accelerator": "accelerate",
}
"""Module that a program of the framework has imported -> integration. The Trainer of transformers uses Accelerate, and
that of Lightning Fabric: the outer one is first."""


@dataclass(frozen=True)
class Known:
    """What a framework knows of a training.

    Attributes:
        config, better: as for ammeter.watch().
        follow: starts to hand the framework's values to a run; returns handles to remove.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    better: Mapping[str, str] = field(default_factory=dict)
    follow: Callable[[Run], list[Any]] = lambda _: []

    def attach(self, run: Run) -> list[Any]:
        """Calls follow(). A version of the framework with other names is logged."""
        try:
            return self.follow(run)
        except Exception as error:  # noqa: BLE001 - the run is watched without the framework's values
            _warn(error)
            return []


def known(optimizers: Sequence[torch.optim.Optimizer]) -> Known:
    """Returns what the framework of the training of these optimizers knows; nothing if there is none."""
    for module, integration in INTEGRATIONS.items():
        if module not in sys.modules:
            continue
        try:
            found: Known | None = import_module(f"ammeter.integrations.{integration}").known(optimizers)
        except Exception as error:  # noqa: BLE001 - the run is watched without what the framework knows
            _warn(error)
            continue
        if found is not None:
            return found
    return Known()


def _warn(error: Exception) -> None:
    with suppress(Exception):  # the program's log handler may raise
        log.warning("ammeter records no values of the framework (%s: %s)", type(error).__name__, error)


def drivers(module: str, kind: str) -> list[Any]:
    """Returns the objects of a framework's class, [] if the program has not imported it."""
    found = getattr(sys.modules.get(module), kind, None)
    return [] if found is None else live_objects(found)


def trains(driver_optimizers: Iterable[Any], optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Returns whether a driver of a framework has one of these optimizers, perhaps wrapped."""
    inner = map(inside, driver_optimizers)
    own = [optimizer for optimizer in inner if isinstance(optimizer, torch.optim.Optimizer)]
    return not {*map(id, own), *map(id, innermost(own))}.isdisjoint(map(id, innermost(optimizers)))
