"""The arguments of watch(), checked and merged with those of `ammeter run`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from ammeter.environment import command_line
from ammeter.environment.settings import launched
from ammeter.recording.schedule.budget import PRESETS
from ammeter.torch_hooks.targets import innermost
from ammeter.watching.handle import auto_watchers
from ammeter.watching.stream_hello import silenced_verdicts
from ammeter.wire.metric_directions import BETTER, check_direction

_DICTS = {
    "config": "vars(arguments)",
    "tags": "{'team': 'vision'}",
    "better": "{'val_accuracy': 'higher'}",
    "also": "{'ema': ema_model}",
}


class Arguments(msgspec.Struct, frozen=True):
    """Checked arguments of one watch() call; options has those that are not lists of objects."""

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scalers: list[torch.amp.GradScaler]
    guards: tuple[Any, ...]
    options: dict[str, Any]


def checked(model: Any, optimizer: Any, scaler: Any, options: dict[str, Any]) -> Arguments:
    """Returns the arguments with those of `ammeter run`.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """
    if options["preset"] not in PRESETS:
        raise ValueError(f"preset is {options['preset']!r}; use one of {', '.join(PRESETS)}")
    options = _with_launcher_options({"better": {}, **options})
    for name, example in _DICTS.items():
        if not isinstance(options[name], Mapping):
            raise TypeError(f"{name} is a {type(options[name]).__name__}; watch() takes a dict, such as {example}")
    for name, copy in options["also"].items():
        if not isinstance(copy, torch.nn.Module):
            raise TypeError(
                f"also[{name!r}] is a {type(copy).__name__}; watch() takes a Module, such as a copy of the model"
            )
    silenced_verdicts(options["tags"])
    for name, direction in {**options["better"], **_directions(options["tags"])}.items():
        check_direction(name, direction)
    models = _several(model, torch.nn.Module, "model")
    return Arguments(
        models,
        innermost(_several(optimizer, torch.optim.Optimizer, "optimizer")),
        _several(scaler, torch.amp.GradScaler, "scaler"),
        _guards(options["guards"], models),
        options,
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Checks options of watch() before its model is known, which guards need.

    Raises:
        TypeError, ValueError: an option is invalid.
    """
    unset: dict[str, Any] = {"preset": "default", **{name: {} for name in _DICTS}}
    given = {name: value for name, value in options.items() if value is not None}
    checked(None, None, None, {**unset, **given, "guards": ()})


def _with_launcher_options(options: dict[str, Any]) -> dict[str, Any]:
    """Merges the options of `ammeter run` into the program's, which have priority.

    Without any config, the script's command-line options are the config.
    """
    if not auto_watchers or not all(isinstance(options[name], Mapping) for name in ("config", "tags")):
        return options
    launcher = launched()
    config = {**launcher.config, **options["config"]} or command_line.parse(sys.argv[1:])
    return options | {"config": config, "tags": {**launcher.tags, **options["tags"]}}


def _directions(tags: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the directions in tags of the form better.NAME."""
    return {str(key)[len(BETTER) :]: value for key, value in tags.items() if str(key).startswith(BETTER)}


def _guards(given: Any, models: list[torch.nn.Module]) -> tuple[Any, ...]:
    """Checks the guards; imports nothing if none is given."""
    if isinstance(given, list | tuple) and not given:
        return ()
    from ammeter import guards

    return guards.checked(given, models)


def _several(given: Any, kind: type, name: str) -> list[Any]:
    values = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {type(value).__name__}; watch() takes a {kind.__name__} or a list of them")
    return values
