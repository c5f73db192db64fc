"""Runs that the symptoms of a fault are compared with, and what they recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import torch

import broken
import train
from console import Summary
from tests.trainer.conftest import Seen

SMALLEST_NORMAL = 2.0**-14  # of float16
STEPS = 60

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


def healthy(seen: Seen, *arguments: str) -> Summary:
    """What becomes of the same network, unbroken."""
    return unbroken(arch(seen), *arguments)


def unbroken(*arguments: str) -> Summary:
    return broken.main(["--tiny", "--steps", str(STEPS), "--arch", *arguments])


def trained(seen: Seen, *arguments: str) -> Summary:
    """What becomes of another run of the same network."""
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
