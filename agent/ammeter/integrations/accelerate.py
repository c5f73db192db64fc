"""Watches programs of Accelerate.

    from ammeter.integrations.accelerate import AmmeterTracker
    accelerator = Accelerator(log_with=[AmmeterTracker()])
    accelerator.init_trackers("my-project", config={...})

It receives what the program passes to Accelerator.log().
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

_accelerate: Any = framework("accelerate", "accelerate")
_tracking: Any = framework("accelerate", "accelerate.tracking")

FRAMEWORK = "accelerate"


class AmmeterTracker(_tracking.GeneralTracker):  # type: ignore[misc]
    """Starts a run at the first Accelerator.backward(), in each process. Other calls are made in the main one only."""

    name = "ammeter"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, **options: Any) -> None:
        """Takes the options of ammeter.watch(): name, project, tags, url, dir, budget, preset, guards and so on.

        Raises:
            TypeError, ValueError: an option is unknown or invalid.
        """
        super().__init__()
        self._run = FrameworkRun(FRAMEWORK, options)
        self._config: dict[str, Any] = {}
        self._patches = [patch.method(_accelerate.Accelerator, "backward", before=self._before_backward)]

    @property
    def tracker(self) -> Run:
        """The handle of the present run."""
        return self._run.run

    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self._config |= values

    @guarded
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        self._run.log(with_step(values, step))

    @guarded
    def finish(self) -> None:
        self._stop_waiting()
        self._run.close()

    @guarded
    def _before_backward(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        accelerator = args[0]
        if any(tracker is self for tracker in accelerator.log_with) and self._run.begins():
            self._stop_waiting()
            objects = (accelerator._models, accelerator._optimizers, [accelerator.scaler])
            self._run.start(*objects, config(accelerator), given=self._config)

    def _stop_waiting(self) -> None:
        while self._patches:
            self._patches.pop().remove()


def known(optimizers: Sequence[Any]) -> Known | None:
    """Returns what the Accelerator of these optimizers knows, for a run that `ammeter run` has started."""
    for accelerator in drivers("accelerate.accelerator", "Accelerator"):
        if trains(accelerator._optimizers, optimizers):
            settings = recorded(FRAMEWORK, config(accelerator))
            return Known(settings, follow=partial(_follow, accelerator))
    return None


def _follow(accelerator: Any, run: Run) -> list[Any]:
    own = weakref.ref(accelerator)

    @guarded
    def log(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[0] is own():
            values = args[1] if len(args) > 1 else kwargs["values"]
            send(run, with_step(values, args[2] if len(args) > 2 else kwargs.get("step")))

    return [patch.method(type(accelerator), "log", before=log)]


def with_step(values: Mapping[str, Any], step: int | None) -> Mapping[str, Any]:
    """Returns values with the program's own count of steps, which is recorded as `reported_step`."""
    return values if step is None else {**values, "step": step}


def config(accelerator: Any) -> dict[str, Any]:
    """Returns the settings of an Accelerator that change its steps."""
    return {
        "mixed_precision": accelerator.mixed_precision,
        "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
        "distributed_type": str(accelerator.distributed_type),
    }
