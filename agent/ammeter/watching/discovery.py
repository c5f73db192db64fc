"""Finds what a program trains, once, among the objects of its process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ammeter.tensors.live_objects import live_objects
from ammeter.torch_hooks.targets import WRAPPERS, wraps


@dataclass(frozen=True)
class TrainingObjects:
    """The objects of one training.

    models: the outermost modules that contain the trained parameters.
    """

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scalers: list[torch.amp.GradScaler]


def find_training(
    optimizer: torch.optim.Optimizer | None, scaler: torch.amp.GradScaler | None = None
) -> TrainingObjects | None:
    """Finds the objects of the training of an optimizer or scaler.

    The optimizer steps now, or the scaler scales now. Other optimizers of the process belong to it too, as those of a
    GAN, unless they have the same parameters.

    Returns:
        None if only a scaler is known and the existing optimizers are ambiguous.
    """
    found = live_objects(torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)
    optimizers = [candidate for candidate in found if issubclass(type(candidate), torch.optim.Optimizer)]
    constructed = [candidate for candidate in optimizers if "param_groups" in vars(candidate)]
    chosen = _optimizers_of_training(optimizer, constructed)
    if not chosen:
        return None
    scalers = [candidate for candidate in found if issubclass(type(candidate), torch.amp.GradScaler)]
    if scaler is not None:
        scalers = [scaler, *(other for other in scalers if other is not scaler)]
    modules = [candidate for candidate in found if issubclass(type(candidate), torch.nn.Module)]
    return TrainingObjects(_roots(modules, chosen), chosen, scalers)


def outermost(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the outermost wrapper of a model, such as DDP's or that of torch.compile; without one, the model."""
    wrappers = {id(_wrapped(module)): module for module in live_objects(torch.nn.Module)}
    for _ in wrappers:  # a wrapper may be wrapped again
        model = wrappers.get(id(model), model)
    return model


def _wrapped(module: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module that this one wraps: it has the same parameters."""
    children = vars(module).get("_modules") or {}
    inner = next((children[name] for name in WRAPPERS if children.get(name) is not None), None)
    return inner if isinstance(inner, torch.nn.Module) and _parameters(inner) == _parameters(module) else None


def _optimizers_of_training(
    stepping: torch.optim.Optimizer | None, optimizers: list[torch.optim.Optimizer]
) -> list[torch.optim.Optimizer]:
    """Returns the innermost optimizers that train different parameters.

    Empty if no optimizer steps yet and two of them train the same parameters.
    """
    innermost = [outer for outer in optimizers if not any(wraps(outer, inner) for inner in optimizers)]
    chosen = []
    if stepping is not None:
        chosen = [next((inner for inner in innermost if wraps(stepping, inner)), stepping)]
    trained = {id(parameter) for optimizer in chosen for parameter in _trained(optimizer)}
    for optimizer in innermost:
        own = set(map(id, _trained(optimizer)))
        if optimizer in chosen or not own:
            continue
        if stepping is None and not own.isdisjoint(trained):
            return []
        if own.isdisjoint(trained):
            chosen.append(optimizer)
            trained |= own
    return chosen


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad)


def _roots(modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.nn.Module]:
    """Returns modules that no other module contains, the one with most trained parameters first."""
    remaining = {id(parameter) for optimizer in optimizers for parameter in _trained(optimizer)}
    inside = {id(child) for module in modules for child in _children(module)}
    outermost = [(_parameters(module) & remaining, module) for module in modules if id(module) not in inside]
    chosen = []
    for own, module in sorted(outermost, key=lambda pair: len(pair[0]), reverse=True):
        if own & remaining:
            chosen.append(module)
            remaining -= own
    return chosen


def _parameters(root: torch.nn.Module) -> set[int]:
    """Returns the ids of the parameters of a module and all modules in it."""
    parameters, queue, visited = set(), [root], {id(root)}
    while queue:
        module = queue.pop()
        own = (vars(module).get("_parameters") or {}).values()
        parameters |= {id(parameter) for parameter in own if parameter is not None}
        for child in _children(module):
            if id(child) not in visited:
                visited.add(id(child))
                queue.append(child)
    return parameters


def _children(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the children of a module; none while the module is being constructed."""
    return [child for child in (vars(module).get("_modules") or {}).values() if child is not None]
