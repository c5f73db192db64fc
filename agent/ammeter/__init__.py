"""Ammeter watches automatic mixed precision training without changing it.

import ammeter
run = ammeter.watch(model, optimizer, scaler)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ammeter.run import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

    import torch

__version__ = "0.1.0"
__all__ = ["Run", "watch"]


def watch(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] | None = None,
    *,
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    project: str | None = None,
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    also: Mapping[str, torch.nn.Module] | None = None,
    budget: float | None = None,
    preset: str = "default",
    guards: Sequence[Any] = (),
) -> Run:
    """Watches a training run from here on, and returns its handle. Call it once, before the first step.

    url: the collector; AMMETER_URL else; without one the journal stays in `dir` (AMMETER_DIR, ~/.ammeter) and
    `ammeter report` reads it. budget: most of the step time that sampled readings may take (0.01 is 1 %).
    preset: light (norms only), default, or full (everything at every step, whatever it costs). Raises TypeError or
    ValueError for arguments that cannot be meant; whatever else goes wrong is told once in the log and training goes
    on unwatched.
    """
    from ammeter import start

    return start.watch(
        model,
        optimizer,
        scaler,
        url=url,
        dir=dir,
        name=name,
        project=project,
        config=config or {},
        tags=tags or {},
        also=also or {},
        budget=budget,
        preset=preset,
        guards=guards,
    )
