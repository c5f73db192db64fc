"""Watches the Trainer of Lightning. For Fabric, see fabric.py.

    from ammeter.integrations.lightning import AmmeterCallback
    trainer = Trainer(..., callbacks=[AmmeterCallback()])

A program that has imported `pytorch_lightning`, and not `lightning.pytorch`, gets a callback of the former package.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from ammeter.integrations.framework_run import FrameworkRun, framework, guarded, recorded, send
from ammeter.integrations.loaded import Known, drivers, trains
from ammeter.torch_hooks import patch
from ammeter.watching.handle import Run

NAMES = ("lightning.pytorch", "pytorch_lightning")
"""The two packages that contain this Trainer."""

_lightning: Any = framework("lightning", *NAMES)


class AmmeterCallback(_lightning.Callback):  # type: ignore[misc]
    """Starts a run with the training, and hands over logged metrics, epochs and hyperparameters."""

    def __init__(self, **options: Any) -> None:
        """Takes the options of ammeter.watch(): name, project, tags, url, dir, budget, preset, guards and so on.

        Raises:
            TypeError, ValueError: an option is unknown or invalid.
        """
        super().__init__()
        self._run = FrameworkRun(_lightning.__name__, options)

    @property
    def run(self) -> Run:
        """The handle of the present run."""
        return self._run.run

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts the run, unless an earlier callback of the Trainer is one of Ammeter's."""
        first = next(callback for callback in trainer.callbacks if isinstance(callback, AmmeterCallback))
        if first is self:
            self._run.close()  # of a training that an error ended
            self._run.start([trained(trainer)], trainer.optimizers, [scaler(trainer)], config(trainer))

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.log(metrics(trainer))

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.log(metrics(trainer))

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.close()


def known(optimizers: Sequence[Any]) -> Known | None:
    """Returns what the Trainer of these optimizers knows, for a run that `ammeter run` has started."""
    for name in NAMES:
        for trainer in drivers(f"{name}.trainer.trainer", "Trainer"):
            if trains(trainer.optimizers, optimizers):
                return Known(recorded(name, config(trainer)), follow=partial(_follow, name, trainer))
    return None


def _follow(name: str, trainer: Any, run: Run) -> list[Any]:
    own = weakref.ref(trainer)

    @guarded
    def on_hook(args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if args[0] is own() and args[1] in ("on_validation_end", "on_train_epoch_end"):
            send(run, metrics(args[0]))

    return [patch.function(sys.modules[f"{name}.trainer.call"], "_call_callback_hooks", after=on_hook)]


def trained(trainer: Any) -> Any:
    """Returns the module as the strategy has wrapped it, for example in DDP."""
    wrapped = getattr(trainer.strategy, "model", None)
    return trainer.lightning_module if wrapped is None else wrapped


def scaler(trainer: Any) -> Any:
    """Returns the GradScaler of the precision, or None."""
    return getattr(trainer.precision_plugin, "scaler", None)


def config(trainer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of the module, and the settings of the Trainer that change its steps."""
    return {
        "hparams": getattr(trainer.lightning_module, "hparams", {}),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "gradient_clip_algorithm": trainer.gradient_clip_algorithm and str(trainer.gradient_clip_algorithm),
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "precision": trainer.precision,
        "strategy": type(trainer.strategy).__name__,
        "resumed_at_step": trainer.global_step,
    }


def metrics(trainer: Any) -> dict[str, Any]:
    """Returns what the module has logged for callbacks, and the epoch; nothing during the check before training."""
    return {} if trainer.sanity_checking else {**trainer.callback_metrics, "epoch": trainer.current_epoch}
