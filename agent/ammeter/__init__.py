"""Ammeter watches automatic mixed precision training without changing it.

import ammeter
run = ammeter.watch(model, optimizer, scaler)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ammeter._version import __version__ as __version__
from ammeter.watching.handle import Run, auto_watchers

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import torch

    from ammeter import guards as guards
    from ammeter.guards import Stopped as Stopped

__all__ = ["Run", "Stopped", "guards", "watch"]


def __getattr__(name: str) -> Any:
    """Imports guards, which need torch, on demand. `block` is the 0.1 name of `ammeter.wire.columns`."""
    if name == "block":
        return import_module("ammeter.wire.columns")
    if name not in ("guards", "Stopped"):
        raise AttributeError(f"module 'ammeter' has no attribute {name!r}")
    guards = import_module("ammeter.guards")
    return guards if name == "guards" else guards.Stopped


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
    better: Mapping[str, str] | None = None,
    also: Mapping[str, torch.nn.Module] | None = None,
    budget: float | None = None,
    preset: str = "default",
    guards: Sequence[Any] = (),
    replay: bool = False,
) -> Run:
    """Watches a training run from here on, and returns its handle. Call it once, before the first step.

    optimizer and scaler may be lists, as in a GAN; scaler may be None, as in float32 and bfloat16 training.

    url: the collector, http:// or https://; else AMMETER_URL; without either the journal stays in `dir` (else
    AMMETER_DIR, else ~/.ammeter), and `ammeter report` reads it.
    name, project: what people look for; else the script's name, and "default".
    config: settings worth seeing beside the run. Plain values are kept, objects by their fields, others as text;
    secrets are not, nor anywhere else (docs/secrets.md). tags: words to find the run by.
    better: of metrics that run.log() names which values are better, {"val_accuracy": "higher"}: these are compared with
    the baseline's, as val_loss is, of which lower is better. The same as the tag `better.val_accuracy`.
    budget: share of step time that sampled readings may take, 0.01 for 1 %; else AMMETER_BUDGET.
    preset: "light" (norms only), "default", or "full" (everything at every step, whatever it costs; while it counts
    the operators of a backward pass, now and then, torch computes the gradient of prod in another order).
    also: copies of the model that the program keeps, {"ema": ema_model}: whether they move is watched too. torch's
    AveragedModel is found by itself.
    guards: what may act on the run, [ammeter.guards.Stop()]; without any nothing does. docs/guards.md has them all.
    replay: keep the inputs of each step until its optimizer steps, and run the forward pass of a bad step once more to
    name the module where its NaN was born, also when that happens once in a run. A bad step takes that pass longer;
    weights, buffers and random numbers stay as they are, hooks of the program's own on its modules are called again.

    Raises TypeError or ValueError for arguments that cannot be meant; whatever else goes wrong is told once in the
    log and training goes on unwatched.
    """
    from ammeter.environment.settings import disabled

    if disabled():
        return Run()
    for make_way in auto_watchers:
        make_way()
    from ammeter.watching import setup

    return setup.watch(
        model,
        optimizer,
        scaler,
        url=url,
        dir=dir,
        name=name,
        project=project,
        config=config or {},
        tags=tags or {},
        better=better or {},
        also=also or {},
        budget=budget,
        preset=preset,
        guards=guards,
        replay=replay,
    )
