"""Runs that the symptoms of a fault are compared with, and what they recorded."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

import broken
import train
from console import Summary
from tests.trainer.conftest import Seen

SMALLEST_NORMAL = 2.0**-14  # of float16
STEPS = 60

CHECKPOINT = "{}/kept/run.pt"
"""In the temporary folder of the test."""

Symptom: TypeAlias = Callable[[Summary, Seen], None]
Check: TypeAlias = Callable[[str, str, Symptom], None]


def symptoms(module: Mapping[str, Any]) -> dict[str, Symptom]:
    """The functions named shows_FAULT in a module, by the name of the fault."""
    prefix = "shows_"
    return {
        name.removeprefix(prefix).replace("_", "-"): function
        for name, function in module.items()
        if name.startswith(prefix)
    }


def with_options(*arguments: str) -> Callable[[Symptom], Symptom]:
    """Further arguments of the run whose symptoms the decorated function asserts.

    A --fault among them replaces the fault at its own first step.
    """

    def decorate(symptom: Symptom) -> Symptom:
        vars(symptom)["options"] = arguments
        return symptom

    return decorate


def options_of(symptom: Symptom) -> tuple[str, ...]:
    options: tuple[str, ...] = getattr(symptom, "options", ())
    return options


def checkpoint() -> Path:
    """The checkpoint of `with_options("--checkpoint", CHECKPOINT)`. Its folder does not exist before the run."""
    return Path(CHECKPOINT.format(tempfile.gettempdir()))


def healthy(seen: Seen, *arguments: str) -> Summary:
    """The summary of the same network, unbroken."""
    return unbroken(arch(seen), *arguments)[0]


def healthy_losses(seen: Seen) -> list[float]:
    return unbroken(arch(seen))[1]


@functools.cache
def unbroken(arch: str, *arguments: str) -> tuple[Summary, list[float]]:
    """Summary and losses of an unbroken run.

    The same arguments give the same numbers, so a process trains each of them once.
    """
    before, seen = stand_in(), Seen()
    vars(train)["ammeter"] = seen
    try:
        return broken.main(["--tiny", "--steps", str(STEPS), "--arch", arch, *arguments]), seen.losses
    finally:
        vars(train)["ammeter"] = before


def trained(seen: Seen, *arguments: str) -> Summary:
    """The summary of another run of the same network."""
    return broken.main(["--tiny", "--steps", str(STEPS), *same_network(seen), *arguments])


def stand_in() -> Seen:
    """What the last run told instead of Ammeter."""
    return cast(Seen, vars(train)["ammeter"])


def arch(seen: Seen) -> str:
    return str(seen.watched["config"]["arch"])


def same_network(seen: Seen) -> tuple[str, str]:
    return "--arch", arch(seen)


def path(seen: Seen, module: torch.nn.Module, weight: str) -> str:
    """The weight's name in the whole network."""
    return next(f"{name}.{weight}" for name, submodule in seen.model.named_modules() if submodule is module)


def bad_rows(gradients: dict[str, torch.Tensor]) -> dict[str, set[int]]:
    """The weights whose gradient is not finite, and the rows where."""
    bad = {name: {int(at[0]) for at in (~gradient.isfinite()).nonzero()} for name, gradient in gradients.items()}
    return {name: rows for name, rows in bad.items() if rows}
