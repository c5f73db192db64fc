"""Watches the Trainer of transformers.

    from ammeter.integrations.huggingface import AmmeterCallback
    trainer = Trainer(..., callbacks=[AmmeterCallback()])

Trainers that are derived from it, such as TRL's, take the callback as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ammeter.integrations.framework_run import FrameworkRun, framework, guarded, recorded, send
from ammeter.integrations.loaded import Known, drivers, trains
from ammeter.torch_hooks import patch
from ammeter.watching.discovery import outermost
from ammeter.watching.handle import Run

_transformers: Any = framework("huggingface", "transformers")

FRAMEWORK = "transformers"
VALIDATION = {"eval_loss": "val_loss"}
"""The Trainer's name -> the run's."""


class AmmeterCallback(_transformers.TrainerCallback):  # type: ignore[misc]
    """Starts a run with the training, also with one that resumes, and hands over metrics, epochs and arguments."""

    def __init__(self, **options: Any) -> None:
        """Takes the options of ammeter.watch(): name, project, tags, url, dir, budget, preset, guards and so on.

        Raises:
            TypeError, ValueError: an option is unknown or invalid.
        """
        self._run = FrameworkRun(FRAMEWORK, options)

    @property
    def run(self) -> Run:
        """The handle of the present run."""
        return self._run.run

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._run.close()  # of a training that an error ended
        self._start(args, state, objects)

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Starts the run if the Trainer had no optimizer before."""
        self._start(args, state, objects)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        self._run.log(metrics(logs))

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.close()

    def _start(self, args: Any, state: Any, objects: Mapping[str, Any]) -> None:
        optimizer, model = objects.get("optimizer"), objects.get("model")
        if optimizer is not None and model is not None and self._run.begins():
            scaler = getattr(optimizer, "scaler", None)
            self._run.start([outermost(model)], [optimizer], [scaler], config(args, state), better(args))


def known(optimizers: Sequence[Any]) -> Known | None:
    """Returns what the Trainer of these optimizers knows, for a run that `ammeter run` has started."""
    for trainer in drivers("transformers.trainer", "Trainer"):
        if trains([trainer.optimizer], optimizers):
            settings = recorded(FRAMEWORK, config(trainer.args, trainer.state))
            return Known(settings, better(trainer.args), partial(_follow, trainer.callback_handler))
    return None


def _follow(handler: Any, run: Run) -> list[Any]:
    own = weakref.ref(handler)

    @guarded
    def on_log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[0] is own():
            send(run, metrics(args[4] if len(args) > 4 else kwargs.get("logs")))

    return [patch.method(type(handler), "on_log", before=on_log)]


def config(args: Any, state: Any) -> dict[str, Any]:
    """Returns the arguments of a Trainer, and the step that it begins at."""
    return {**args.to_dict(), "resumed_at_step": state.global_step}


def better(args: Any) -> dict[str, str]:
    """Returns the metric by which the Trainer chooses its best model, and whether its higher values are better."""
    name = getattr(args, "metric_for_best_model", None)
    if not name:
        return {}
    name = name if name.startswith("eval_") else f"eval_{name}"
    return {VALIDATION.get(name, name): "higher" if args.greater_is_better else "lower"}


def metrics(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns logged values under the names of the run."""
    return {VALIDATION.get(name, name): value for name, value in (logs or {}).items()}
