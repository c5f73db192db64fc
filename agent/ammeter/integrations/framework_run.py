"""The run of a framework's training. It starts once, receives the framework's values, and never raises later."""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from importlib import import_module
from numbers import Real
from typing import Any, TypeVar, cast

import torch

import ammeter
from ammeter.environment.settings import disabled, settings
from ammeter.integrations.loss_scalers import follow_inside
from ammeter.integrations.optimizer_chain import inside
from ammeter.watching.arguments import check_options
from ammeter.watching.handle import Run
from ammeter.wire.frames import SCALARS

log = logging.getLogger("ammeter")

Call = TypeVar("Call", bound=Callable[..., Any])

MAX_CONFIG_DEPTH = 4
"""Depth of nested settings that are stored; deeper ones are objects of the program rather than settings."""

OWN_NAMES = (SCALARS.keys() | {"step"}) - {"val_loss", "samples", "tokens"}
"""Names that a framework's value does not get. Ammeter measures these columns, and a framework's values are means over
several steps, or after a clip; `step` is an argument of run.log()."""


class FrameworkRun:
    """A run that an integration starts.

    Attributes:
        run: the handle; one that watches nothing before start() and after close().
        has_begun: whether begins() was called since close().
    """

    def __init__(self, framework: str, options: Mapping[str, Any]) -> None:
        """Prepares a run.

        Args:
            framework: name of the framework's package, as stored in the run's config.
            options: of ammeter.watch(), such as name, project, tags, url, dir and config.

        Raises:
            TypeError, ValueError: an option is unknown or invalid, or one that the integration finds itself.
        """
        own = {"model", "optimizer", "scaler"} & options.keys()
        if own:
            raise TypeError(f"the integration finds {' and '.join(sorted(own))} itself; leave it out")
        inspect.signature(ammeter.watch).bind(None, None, **options)
        if not disabled():
            check_options(options)
            with suppress(OSError):  # watch() reports it
                settings(options.get("url"), options.get("dir"), options.get("budget"))
        self.run = Run()
        self._framework = framework
        self._options = dict(options)
        self.has_begun = False

    def begins(self) -> bool:
        """Whether start() is to be called now: only the first time until close(), whatever comes of it."""
        is_first, self.has_begun = not self.has_begun, True
        return is_first

    def start(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[Any],
        scalers: Sequence[torch.amp.GradScaler | None],
        config: Mapping[str, Any],
        better: Mapping[str, str] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts to watch.

        Args:
            optimizers: those that the framework has, which may be another library's around torch's.
            config, better: what the framework knows.
            given: the config that the program has given to the framework.

        The options of the user have priority.

        Raises:
            TypeError, ValueError: an option of the user is invalid.
        """
        known = {"config": {**recorded(self._framework, config), **plain(given or {})}, "better": better or {}}
        merged = {name: {**facts, **(self._options.get(name) or {})} for name, facts in known.items()}
        present = [scaler for scaler in scalers if scaler is not None]
        self.run = ammeter.watch(list(models), list(map(inside, optimizers)), present, **{**self._options, **merged})
        for optimizer in optimizers:
            follow_inside(self.run, optimizer)

    def log(self, values: Mapping[str, Any]) -> None:
        """Adds the numbers among these values to the last step; see send()."""
        send(self.run, values)

    def close(self) -> None:
        """Ends the run. Another one may begin later."""
        run, self.run = self.run, Run()
        self.has_begun = False
        run.close()


def send(run: Run, values: Mapping[str, Any]) -> None:
    """Adds the numbers among a framework's values to the last step, under names that no measured column has.

    Its `loss` becomes `reported_loss`, for example.
    """
    numbers = {str(name): value for name, value in values.items() if _is_number(value)}
    if numbers and run.id:
        run.log(**{f"reported_{name}" if name in OWN_NAMES else name: value for name, value in numbers.items()})


def recorded(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config to record of a framework: its name and version, and its settings without objects."""
    version = str(getattr(sys.modules.get(name), "__version__", ""))
    return {"framework": {"name": name, "version": version, **plain(config)}}


def plain(config: Mapping[Any, Any], depth: int = MAX_CONFIG_DEPTH) -> dict[str, Any]:
    """Returns the numbers, texts, flags and lists of a config; objects and empty values are left out."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            if depth and value:
                settings[str(name)] = plain(value, depth - 1)
        elif _is_setting(value) or (isinstance(value, list | tuple) and all(map(_is_setting, value))):
            settings[str(name)] = value
    return settings


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, Real) and not isinstance(value, bool)


def framework(extra: str, *names: str) -> Any:
    """Imports a framework's module: of several with the same content, one that the program has imported.

    Raises:
        ImportError: none can be imported; the message has the remedy.
    """
    errors = []
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError as error:
            errors.append(f"{name} cannot be imported ({error})")
    remedy = f"pip install 'ammeter[{extra}]'"
    raise ImportError(f"ammeter.integrations.{extra}: {', and '.join(errors)}; run: {remedy}", name=names[0])


def guarded(call: Call) -> Call:
    """Wraps a callback of a framework: an error in it is logged once and never reaches the training."""
    logged: list[str] = []

    @wraps(call)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the promise: the training goes on, watched or not
            message = f"{call.__name__} failed ({type(error).__name__}: {error})"
            with suppress(Exception):  # the program's log handler may raise
                if not logged:
                    logged.append(message)
                    log.warning("ammeter: %s; training goes on", message)
            return None

    return cast(Call, safe)


def _is_setting(value: Any) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
