"""Ammeter watches automatic mixed precision training without changing it.

Usage:

    import ammeter
    run = ammeter.watch(model, optimizer, scaler)
    print(run.report())
    frame = ammeter.load(run.path).steps()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ammeter._version import __version__ as __version__
from ammeter.preparation import import_hook
from ammeter.watching.handle import Run, auto_watchers

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import torch

    from ammeter import guards as guards
    from ammeter.guards import Stopped as Stopped
    from ammeter.recorded import LoadedRun

__all__ = ["Run", "Stopped", "guards", "load", "watch"]

import_hook.install()


def __getattr__(name: str) -> Any:
    """Imports guards, which need torch, on demand.

    `block` is the name of `ammeter.wire.columns` in version 0.1.
    """
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
    """Watches a training run and returns its handle. Call it once, before the first step.

    optimizer and scaler may be lists, as in a GAN; scaler may be None, as in float32 and bfloat16 training.

    Args:
        model, optimizer, scaler: the objects to watch, or lists of them.
        url: the collector, http:// or https://; default AMMETER_URL. Without a collector the journal stays in `dir`,
            and `ammeter report` reads it.
        dir: the folder of the journals; default AMMETER_DIR, else ~/.ammeter.
        name, project: names shown to people; default the script's name, and "default".
        config: settings to store with the run. Plain values are stored as they are, objects by their fields, others as
            text. Secrets are never stored (docs/secrets.md).
        tags: words to find the run by.
        better: which values of a metric logged with run.log() are better, {"val_accuracy": "higher"}. Such metrics are
            compared with the baseline, like val_loss, for which lower is better. Same as the tag `better.val_accuracy`.
        also: copies of the model that the program keeps, {"ema": ema_model}, whose changes are also watched. torch's
            AveragedModel is detected automatically.
        budget: share of step time that sampled readings may take, 0.01 for 1 %; default AMMETER_BUDGET.
        preset: "light" (norms only), "default", or "full" (everything at every step, at any cost). While "full" counts
            the operators of a backward pass, from time to time, torch computes the gradient of prod in another order.
        guards: guards that may act on the run, [ammeter.guards.Stop()]; by default none. See docs/guards.md.
        replay: store the inputs of each step until its optimizer steps, and repeat the forward pass of a bad step to
            name the module in which its first NaN appeared, even if that happens once in a run. A bad step takes longer
            by one forward pass. Weights, buffers and random numbers are unchanged; the program's own hooks on its
            modules are called again.

    Raises:
        TypeError, ValueError: an argument is invalid. Any other fault is logged once, and training continues unwatched.
    """
    from ammeter.environment.settings import disabled

    if disabled():
        return Run()
    for end_auto_watching in auto_watchers:
        end_auto_watching()
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


def load(run: str | os.PathLike[str], dir: str | os.PathLike[str] | None = None) -> LoadedRun:
    """Loads a recorded run for analysis, from its journal; a run that still trains up to its last written row.

    Args:
        run: the folder of a run, or the id or name of a run in `dir`, or its beginning. A folder of runs means the one
            that started last.
        dir: the folder of the journals; default AMMETER_DIR, else ~/.ammeter.

    Raises:
        ValueError: there is no such run, or it has no step yet.
    """
    from ammeter import recorded

    return recorded.load(run, dir)
