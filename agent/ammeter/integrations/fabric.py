"""Watches programs of Lightning Fabric.

    from ammeter.integrations.fabric import AmmeterCallback
    fabric = Fabric(..., callbacks=[AmmeterCallback()])

Fabric calls the methods of its callbacks by names that the program may choose. This one therefore has few of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ammeter.integrations.framework_run import FrameworkRun, framework, guarded, recorded, send
from ammeter.integrations.loaded import Known, drivers
from ammeter.torch_hooks import patch
from ammeter.watching.discovery import find_training
from ammeter.watching.handle import Run

NAMES = ("lightning.fabric", "lightning_fabric")
"""The two packages that contain Fabric."""

_fabric: Any = framework("fabric", *NAMES)


class AmmeterCallback:
    """Starts a run at the first Fabric.backward(), and hands over what the program passes to Fabric.log()."""

    def __init__(self, **options: Any) -> None:
        """Takes the options of ammeter.watch(): name, project, tags, url, dir, budget, preset, guards and so on.

        Raises:
            TypeError, ValueError: an option is unknown or invalid.
        """
        self._run = FrameworkRun(_fabric.__name__, options)
        self._fabric: Any = None
        self._has_searched = False
        self._patches: list[Any] = []

    @property
    def run(self) -> Run:
        """The handle of the present run."""
        return self._run.run

    @guarded
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Waits for the first backward pass of this Fabric, called by Fabric.setup()."""
        if not self._patches:
            self._fabric, self._has_searched = fabric, False
            self._patches = [
                patch.method(type(fabric), "backward", before=self._before_backward),
                *_follow(fabric, lambda: self._run.run),
            ]

    @guarded
    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """Starts the run if several optimizers of the same weights left open which one trains."""
        if self._patches:
            self._start(optimizer)

    @guarded
    def on_train_end(self) -> None:
        """Ends the run, for programs that call fabric.call("on_train_end")."""
        while self._patches:
            self._patches.pop().remove()
        self._fabric = None
        self._run.close()

    @guarded
    def _before_backward(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if args[0] is self._fabric and not self._has_searched:
            self._has_searched = True
            self._start(None)

    def _start(self, optimizer: Any) -> None:
        training = None if self._run.has_begun else find_training(optimizer)
        if training is not None and self._run.begins():
            self._run.start(training.models, training.optimizers, [scaler(self._fabric)], config(self._fabric))


def known(_: Sequence[Any]) -> Known | None:
    """Returns what the only Fabric of the program knows, for a run that `ammeter run` has started."""
    fabrics = [(name, fabric) for name in NAMES for fabric in drivers(f"{name}.fabric", "Fabric")]
    if len(fabrics) != 1:
        return None
    ((name, fabric),) = fabrics
    return Known(recorded(name, config(fabric)), follow=lambda run: _follow(fabric, lambda: run))


def _follow(fabric: Any, present_run: Callable[[], Run]) -> list[Any]:
    own = weakref.ref(fabric)

    @guarded
    def log_dict(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[0] is own():
            send(present_run(), args[1] if len(args) > 1 else kwargs.get("metrics", {}))

    return [patch.method(type(fabric), "log_dict", before=log_dict)]


def scaler(fabric: Any) -> Any:
    """Returns the GradScaler of the precision, or None."""
    return getattr(fabric.strategy.precision, "scaler", None)


def config(fabric: Any) -> dict[str, Any]:
    """Returns the settings of Fabric that change its steps."""
    return {"precision": fabric.strategy.precision.precision, "strategy": type(fabric.strategy).__name__}
