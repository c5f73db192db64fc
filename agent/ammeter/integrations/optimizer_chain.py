"""Optimizers inside of each other: a framework wraps torch's, and so may a library below it."""

from __future__ import annotations

from typing import Any

import torch


def chain(optimizer: Any) -> list[Any]:
    """Returns an optimizer and those inside of it, the innermost one last."""
    found: list[Any] = []
    while optimizer is not None and not any(one is optimizer for one in found):
        found.append(optimizer)
        optimizer = getattr(optimizer, "__dict__", {}).get("optimizer")
    return found


def inside(optimizer: Any) -> Any:
    """Returns torch's optimizer inside of one that is not torch's, such as DeepSpeed's; else the optimizer.

    The one around it never steps as torch's do, nor does a wrapper around that.
    """
    found = chain(optimizer)
    foreign = [at for at, one in enumerate(found) if not isinstance(one, torch.optim.Optimizer)]
    inner = found[foreign[-1] + 1 :] if foreign else []
    return inner[0] if inner else optimizer
