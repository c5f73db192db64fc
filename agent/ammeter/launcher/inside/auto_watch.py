"""Watches a program that does not call watch(), from its first training call on.

That call is GradScaler.scale(), else backward() or torch.autograd.grad(), or unscale_() or step() if none of them shows
what is trained. The hook on step() remains, because optimizers may appear later. An error about dtypes that ends the
program before such a call starts a run too, which reports it: most of them are raised in the first forward pass.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ammeter.environment import command_line, identity
from ammeter.environment.settings import Launched, settings
from ammeter.integrations.framework_run import guarded
from ammeter.integrations.loaded import Known, known
from ammeter.integrations.loss_scalers import follow_loaded
from ammeter.launcher.inside.sigterm_note import note_termination
from ammeter.probes.call_order.raised import problem_in
from ammeter.probes.profiling import Profiling
from ammeter.recording import returned_losses
from ammeter.recording.session import Session
from ammeter.redaction import text
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.compiled_code import uncompiled
from ammeter.torch_hooks.targets import optimizer_in
from ammeter.watching import setup
from ammeter.watching.discovery import TrainingObjects, find_training
from ammeter.watching.handle import Run


class AutoWatcher:
    """Starts a run when training begins.

    attach() installs the hooks; stop() ends the automatic run for good.
    """

    def __init__(self, options: Launched, note: Callable[..., None]) -> None:
        self._options = options
        self._note = note
        self._run: Run | None = None
        self._session: Session | None = None
        self._stopped = False
        self._searched = False
        self._step_hook: Any = None
        self._after_step_hook: Any = None
        self._start_patches: list[Any] = []

    def attach(self) -> None:
        self._step_hook = register_optimizer_step_pre_hook(self._safe(self._before_step))
        self._patch_scaler()
        patch.function(sys, "excepthook", before=self._safe(self._before_excepthook))
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def stop(self) -> None:
        """Ends the automatic run, because the program calls ammeter.watch() itself."""
        self._stopped = True
        self._note("own")
        run, self._run, self._session = self._run, None, None
        while self._start_patches:
            self._start_patches.pop().remove()
        if run is not None:
            run.close()

    def _patch_scaler(self) -> None:
        kind = torch.amp.GradScaler
        self._searched = False
        self._start_patches = [
            patch.method(kind, "scale", before=self._safe(self._before_scale)),
            patch.method(kind, "unscale_", before=self._safe(self._before_unscale)),
            patch.method(kind, "step", before=self._safe(self._before_scaler_step)),
            patch.backward(before=self._safe(self._before_backward)),
            patch.function(torch.autograd, "grad", before=self._safe(self._before_grad)),
        ]

    def _before_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Searches once for the optimizer of the call, which is replayed to the hooks of a run that starts here.

        If the search is not conclusive, the first optimizer step starts the run.
        """
        if self._run is None and not self._searched:
            self._searched = True
            self._start(find_training(None, args[0]))
            self._call_late("scale", args, kwargs)

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Searches once, as at scale().

        A run that starts here missed the beginning of this backward() call, which is therefore replayed to its hooks.
        """
        if self._run is None and not self._searched:
            self._searched = True
            self._start(find_training(None))
            if self._session is not None:
                patch.call_late(torch.autograd, "backward", args, kwargs)

    def _before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Searches once, as at backward(), if the call may be that of a program that assigns its gradients itself."""
        if self._run is None and not self._searched and returned_losses.may_train(args, kwargs):
            self._searched = True
            self._start(find_training(None))
            if self._session is not None:
                patch.call_late(torch.autograd, "grad", args, kwargs)

    def _before_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._start_with_scaler("unscale_", args, kwargs)

    def _before_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._start_with_scaler("step", args, kwargs)

    def _before_excepthook(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Starts a run for an uncaught error about precision; the run examines it when the process ends."""
        if self._run is None and len(args) > 1 and problem_in(str(args[1]))[1]:
            self._start(find_training(None))

    def _start_with_scaler(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = optimizer_in(args, kwargs)
        if self._run is None and isinstance(optimizer, torch.optim.Optimizer):
            self._start(find_training(optimizer, args[0]))
            self._call_late(name, args, kwargs)

    def _call_late(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Replays the running call of a scaler to the hooks of a run that has started during it."""
        if self._session is not None:
            patch.call_late(type(args[0]), name, args, kwargs)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._session is not None:
            self._session.newcomers.admit(optimizer)
        elif self._run is None:
            if _is_last(self._step_hook):
                self._start_in_step(optimizer, args, kwargs)
            elif not self._after_step_hook:  # torch iterates over its hooks now; a new one would break the iteration
                self._after_step_hook = register_optimizer_step_post_hook(self._safe(self._after_step))

    def _after_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        self._after_step_hook.remove()
        self._after_step_hook = None
        if self._run is None:
            self._start(find_training(optimizer))

    def _start_in_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Starts a run during a call of step().

        The new hooks are called here, because torch would have called them first.
        """
        known = set(_hooks())
        self._start(find_training(optimizer))
        for key in [key for key in _hooks() if key not in known]:
            _hooks()[key](optimizer, args, kwargs)

    def _start(self, training: TrainingObjects | None) -> None:
        if training is None:
            return
        start_patches, self._start_patches = self._start_patches, []
        framework = known(training.optimizers)
        self._run = run = setup.watch(
            training.models,
            training.optimizers,
            training.scalers,
            url=None,
            dir=None,
            budget=None,
            config=self._config(framework),
            tags={},
            better=framework.better,
            also={},
            guards=(),
            name=self._options.name or None,
            project=self._options.project or None,
            preset=self._options.preset,
        )
        self._session = run._session
        if self._session is not None:
            self._session.newcomers.find_models = _models_of
        for (
            handle
        ) in start_patches:  # only now, so that the end of the running scale() is observed and its result is marked
            handle.remove()
        if self._session is None:
            self._stopped = True
            self._note("failed", "; ".join(setup.refused))
            return
        with suppress(OSError):
            note_termination(self._session.journal.folder)
        self._session.handles += framework.attach(run)
        guarded(follow_loaded)(run)
        if self._options.profile:
            profiling = Profiling(self._session)
            self._session.handles += profiling.attach(self._session.guard(profiling.name))
        self._announce(run)

    def _config(self, framework: Known) -> dict[str, Any]:
        """Returns the config of the run. That of `ammeter run`, or the script's options, have priority."""
        return {**framework.config, **(self._options.config or command_line.parse(sys.argv[1:]))}

    def _announce(self, run: Run) -> None:
        if identity.rank()[0] == 0:
            chosen = settings()
            page = f"; page: {text(chosen.url, 1000)}/runs/{run.id}" if chosen.url else ""
            _print(f"ammeter: watching as run {run.id}; journal: {chosen.dir / run.id}{page}")

    def _after_fork_in_child(self) -> None:
        """Prepares a forked child, whose training is separate from the parent's run."""
        if self._session is not None:
            parents, self._run, self._session = self._session, None, None
            with suppress(Exception):
                parents.unsubscribe()
                self._step_hook.remove()
                self._step_hook = register_optimizer_step_pre_hook(self._safe(self._before_step))
                self._patch_scaler()

    def _safe(self, call: Callable[..., None]) -> Callable[..., None]:
        """Wraps a hook so that an error in it ends the automatic run and never reaches the program."""

        def safe(*args: Any) -> None:
            if self._stopped:
                return
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
                self._stopped = True
                subject = "this run" if self._session is None else "an optimizer that was created later"
                _print(f"ammeter: {subject} is not watched ({type(error).__name__}: {error}); the training continues")
                self._note("failed", f"an error in Ammeter ({type(error).__name__}: {error})")

        return uncompiled(safe)


def _models_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
    training = find_training(optimizer)
    return [] if training is None else training.models


def _hooks() -> OrderedDict[int, Any]:
    hooks: OrderedDict[int, Any] = sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    return hooks


def _is_last(handle: Any) -> bool:
    """Returns whether this is torch's last hook.

    An OrderedDict may be changed at the end of its iteration.
    """
    hooks = _hooks()
    return isinstance(hooks, OrderedDict) and next(reversed(hooks), -1) == int(handle.id)


def _print(line: str) -> None:
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
