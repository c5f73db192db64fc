"""Watches the Trainer of torchtitan.

    from ammeter.integrations.torchtitan import AmmeterLogger
    trainer = config.build()
    trainer.metrics_processor.logger = AmmeterLogger(trainer)

It implements torchtitan's BaseLogger, and hands on what it receives to the logger that the Trainer had.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ammeter.integrations.framework_run import FrameworkRun, framework, guarded, recorded, send
from ammeter.integrations.loaded import Known, drivers, trains
from ammeter.torch_hooks import patch
from ammeter.watching.handle import Run

_metrics: Any = framework("torchtitan", "torchtitan.components.metrics")

FRAMEWORK = "torchtitan"
VALIDATION = {"validation_metrics/loss": "val_loss"}
"""The Trainer's name -> the run's."""


class AmmeterLogger(_metrics.BaseLogger):  # type: ignore[misc]
    """Starts a run at the first train_step(), after a checkpoint is loaded, and hands over metrics and config."""

    def __init__(self, trainer: Any, **options: Any) -> None:
        """Prepares a run of this Trainer.

        Args:
            trainer: the Trainer; its present logger still receives all metrics.
            options: those of ammeter.watch(): name, project, tags, url, dir, budget, preset, guards and so on.

        Raises:
            TypeError, ValueError: an option is unknown or invalid.
        """
        self._run = FrameworkRun(FRAMEWORK, options)
        self._inner = trainer.metrics_processor.logger
        self._trainer: Any = weakref.ref(trainer)
        self._patches = [patch.method(type(trainer), "train_step", before=self._before_step)]

    @property
    def run(self) -> Run:
        """The handle of the present run."""
        return self._run.run

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._inner.log(metrics, step)
        self._record(metrics, step)

    def close(self) -> None:
        self._finish()
        self._inner.close()

    @guarded
    def _before_step(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        trainer = args[0]
        if trainer is self._trainer() and self._run.begins():
            self._run.start(trainer.model_parts, list(trainer.optimizers.optimizers), [], config(trainer))

    @guarded
    def _record(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log(named(metrics, step))

    @guarded
    def _finish(self) -> None:
        while self._patches:
            self._patches.pop().remove()
        self._run.close()


def known(optimizers: Sequence[Any]) -> Known | None:
    """Returns what the Trainer of these optimizers knows, for a run that `ammeter run` has started."""
    for trainer in drivers("torchtitan.trainer", "Trainer"):
        if trains(trainer.optimizers.optimizers, optimizers):
            return Known(
                recorded(FRAMEWORK, config(trainer)), follow=partial(_follow, trainer.metrics_processor.logger)
            )
    return None


def _follow(logger: Any, run: Run) -> list[Any]:
    own = weakref.ref(logger)

    @guarded
    def log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[0] is own():
            step = args[2] if len(args) > 2 else kwargs["step"]
            send(run, named(args[1] if len(args) > 1 else kwargs["metrics"], step))

    return [patch.method(type(logger), "log", before=log)]


def config(trainer: Any) -> dict[str, Any]:
    """Returns the configuration of a Trainer, and the step that it begins at. train_step() counts from 1."""
    return {**trainer.config.to_dict(), "resumed_at_step": trainer.step - 1}


def named(metrics: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Returns metrics under the names of the run, and the Trainer's own count of steps."""
    return {**{VALIDATION.get(name, name): value for name, value in metrics.items()}, "step": step}
