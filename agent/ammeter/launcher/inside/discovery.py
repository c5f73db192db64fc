"""Finds what a program trains, once, among the objects of its process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Found:
    """The objects of one training.

    models: the outermost modules that contain the trained parameters.
    """

    models: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scalers: list[torch.amp.GradScaler]


def find(optimizer: torch.optim.Optimizer | None, scaler: torch.amp.GradScaler | None = None) -> Found | None:
    """Finds the objects of the training of an optimizer or scaler.

    The optimizer steps now, or the scaler scales now. Other optimizers of the process belong to it too, as those of a
    GAN, unless they have the same parameters.

    Returns:
        None if only a scaler is known and the existing optimizers are ambiguous.
    """
    modules, optimizers, scalers = _of_kinds(torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)
    chosen = _together(optimizer, [each for each in optimizers if "param_groups" in vars(each)])
    if not chosen:
        return None
    return Found(_roots(modules, chosen), chosen, scalers if scaler is None else [scaler, *_others(scalers, scaler)])


def is_wrapped(optimizer: torch.optim.Optimizer, others: Iterable[torch.optim.Optimizer]) -> bool:
    """Returns whether an optimizer contains one of the others, or the reverse.

    Such optimizers step as one.
    """
    return any(_holds(each, optimizer) or _holds(optimizer, each) for each in others)


def _of_kinds(*kinds: type) -> list[list[Any]]:
    """Returns the objects of each kind.

    Only their type is read, so none of their code runs.
    """
    place: dict[type, int] = {}
    found: list[list[Any]] = [[] for _ in kinds]
    for each in gc.get_objects():
        own = type(each)
        at = place.get(own)
        if at is None:
            at = place[own] = next((n for n, kind in enumerate(kinds) if issubclass(own, kind)), -1)
        if at >= 0:
            found[at].append(each)
    return found


def _together(stepping: torch.optim.Optimizer | None, all_there: list[torch.optim.Optimizer]) -> list[Any]:
    inner = [each for each in all_there if not any(_holds(each, other) for other in all_there)]
    chosen = []
    if stepping is not None:
        chosen = [next((each for each in inner if _holds(stepping, each)), stepping)]
    taken = {id(each) for optimizer in chosen for each in _trained(optimizer)}
    for each in inner:
        own = set(map(id, _trained(each)))
        if each in chosen or not own:
            continue
        if stepping is None and not own.isdisjoint(taken):
            return []
        if own.isdisjoint(taken):
            chosen.append(each)
            taken |= own
    return chosen


def _holds(outer: torch.optim.Optimizer, inner: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer wraps another one, as those of accelerate and ZeRO do."""
    return outer is not inner and any(each is inner for each in vars(outer).values())


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"] if each.requires_grad)


def _roots(modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.nn.Module]:
    """Returns modules that no other module contains, the one with most trained parameters first."""
    wanted = {id(each) for optimizer in optimizers for each in _trained(optimizer)}
    inside = {id(child) for module in modules for child in _children(module)}
    held = [(_parameters(module) & wanted, module) for module in modules if id(module) not in inside]
    chosen = []
    for own, module in sorted(held, key=lambda pair: len(pair[0]), reverse=True):
        if own & wanted:
            chosen.append(module)
            wanted -= own
    return chosen


def _parameters(root: torch.nn.Module) -> set[int]:
    found, waiting, seen = set(), [root], {id(root)}
    while waiting:
        module = waiting.pop()
        found |= {id(each) for each in (vars(module).get("_parameters") or {}).values() if each is not None}
        for child in _children(module):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return found


def _children(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the children of a module; none while the module is being constructed."""
    return [each for each in (vars(module).get("_modules") or {}).values() if each is not None]


def _others(scalers: Iterable[Any], one: Any) -> list[Any]:
    return [each for each in scalers if each is not one]
