"""Calls MODULE:FACTORY, the function of the user's code that makes a model with an example of its inputs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ammeter.torch_hooks import call_site

SPELLING = "MODULE:FACTORY, such as train:make_model or src/train.py:make_model"

CONTRACT = (
    "return (module, inputs), where inputs is a tensor, a tuple of arguments or a dict of keyword arguments of the"
    " module, or (module, inputs, loss), where loss(output) gives a scalar tensor"
)


class BadFactory(Exception):
    """MODULE:FACTORY gives no model; the message has the problem, the value and the remedy."""


@dataclass(frozen=True)
class Example:
    """A model, the arguments of one call, and a function from its output to a loss."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    criterion: Callable[[Any], torch.Tensor] | None = None

    def loss(self) -> torch.Tensor:
        """Runs the model forward and returns its loss.

        Raises:
            BadFactory: the output has no loss, and no number to make one of.
        """
        output = self.module(*self.args, **self.kwargs)
        if self.criterion is not None:
            return self.criterion(output)
        for found in (output, getattr(output, "loss", None), output.get("loss") if isinstance(output, dict) else None):
            if isinstance(found, torch.Tensor) and found.numel() == 1 and found.is_floating_point():
                return found.reshape(())
        tensors = [tensor for tensor in _tensors(output) if tensor.is_floating_point()]
        if not tensors:
            raise BadFactory(
                f"the model returned {type(output).__name__} without a floating-point tensor; return"
                " (module, inputs, loss), where loss(output) gives a scalar tensor"
            )
        with call_site.unknown():  # it is Ammeter's loss and has no line of the program
            return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum()


def load(spelling: str) -> Callable[..., Any]:
    """Imports the module and returns the function.

    Raises:
        BadFactory: there is no such module or function, or its import failed.
    """
    name, colon, attribute = spelling.rpartition(":")
    if not (name and colon and attribute):
        raise BadFactory(f"{spelling!r} is not MODULE:FACTORY; use {SPELLING}")
    module = _module(name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [key for key in vars(module) if callable(getattr(module, key))], 1)
            raise BadFactory(
                f"{name} has no function {attribute!r}; " + (f"use {name}:{near[0]}" if near else "write its name")
            )
        found = getattr(found, part)
    if not callable(found):
        raise BadFactory(f"{spelling} is of type {type(found).__name__}; name a function that returns a model")
    return found  # type: ignore[no-any-return]


def make(spelling: str, given: Mapping[str, Any] | None = None) -> Example:
    """Calls the factory with these keyword arguments.

    Raises:
        BadFactory: it does not take an argument, or returns no model with inputs. What it raises itself is not caught.
    """
    function, given = load(spelling), given or {}
    _check_parameters(function, spelling, given)
    return _example(function(**given), spelling)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes this keyword argument."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    given = parameters.get(name)
    if given is not None:
        return given.kind is not inspect.Parameter.POSITIONAL_ONLY
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def _check_parameters(function: Callable[..., Any], spelling: str, given: Mapping[str, Any]) -> None:
    for name in given:
        if not takes(function, name):
            raise BadFactory(f"{spelling} takes no argument {name!r}; add it to the function, or do not vary it")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in kinds and p.name not in given]
    if needed:
        raise BadFactory(f"{spelling} needs the argument {needed[0]!r}; give it a default")


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    path = Path(name)
    if path.suffix != ".py":
        return _imported(name)
    if not path.is_file():
        raise BadFactory(f"there is no file {name!r} in {here}; use {SPELLING}")
    sys.path.insert(0, str(path.resolve().parent))
    return _imported(path.stem)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise BadFactory(f"{name} imports {error.name!r}, which is not installed; install it") from error
        raise BadFactory(f"there is no module {name!r} in {Path.cwd()} or on PYTHONPATH; use {SPELLING}") from error
    except Exception as error:
        at = call_site.line_in(error.__traceback__)
        raise BadFactory(
            f"{name} raised {type(error).__name__}: {error} while it was imported{f', at {at}' if at else ''};"
            " put its training below `if __name__ == '__main__':`"
        ) from error


def _example(made: Any, spelling: str) -> Example:
    if isinstance(made, torch.nn.Module):
        raise BadFactory(f"{spelling} returned {type(made).__name__} without example inputs; {CONTRACT}")
    if not (isinstance(made, tuple | list) and len(made) in (2, 3) and isinstance(made[0], torch.nn.Module)):
        raise BadFactory(f"{spelling} returned {_described(made)}; {CONTRACT}")
    module, inputs, criterion = (*made, None)[:3]
    if criterion is not None and not callable(criterion):
        raise BadFactory(f"{spelling} returned a loss of type {type(criterion).__name__}; {CONTRACT}")
    if isinstance(inputs, Mapping):
        return Example(module, (), inputs, criterion)
    return Example(module, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, criterion)


def _described(made: Any) -> str:
    if isinstance(made, tuple | list):
        return f"{type(made).__name__} of {', '.join(type(part).__name__ for part in made) or 'nothing'}"
    return type(made).__name__


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = list(vars(value).values())
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, tuple | list) else []
