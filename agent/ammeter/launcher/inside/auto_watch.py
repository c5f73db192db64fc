"""Watches a program that does not call watch(), from its first training call on.

That call is GradScaler.scale(), else backward(), or an optimizer's step() if neither shows what is trained. The hook on
step() remains, because optimizers may appear later.
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

from ammeter.environment import identity
from ammeter.environment.settings import Launched, settings
from ammeter.launcher.inside.discovery import Found, find, is_wrapped
from ammeter.launcher.inside.sigterm_note import note_termination
from ammeter.probes.profiling import Profiling
from ammeter.recording.session import Session
from ammeter.redaction import text
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.compiled_code import uncompiled
from ammeter.torch_hooks.targets import optimizer_in
from ammeter.watching import setup
from ammeter.watching.handle import Run

MAX_LATER_OPTIMIZERS = 8
"""Limit of optimizers that are added after the start, so that a program that creates one at each step is not slowed
down."""


class StandIn:
    """Starts a run when training begins.

    attach() installs the hooks; make_way() ends the automatic run for good.
    """

    def __init__(self, said: Launched, note: Callable[..., None]) -> None:
        self._said = said
        self._note = note
        self._run: Run | None = None
        self._session: Session | None = None
        self._over = False
        self._later = 0
        self._looked = False
        self._hook: Any = None
        self._after: Any = None
        self._waiting: list[Any] = []

    def attach(self) -> None:
        self._hook = register_optimizer_step_pre_hook(self._guarded(self._steps))
        self._wait_for_scaler()
        os.register_at_fork(after_in_child=self._in_forked_child)

    def make_way(self) -> None:
        """Ends the automatic run, because the program calls ammeter.watch() itself."""
        self._over = True
        self._note("own")
        run, self._run, self._session = self._run, None, None
        self._stop_waiting()
        if run is not None:
            run.close()

    def _wait_for_scaler(self) -> None:
        kind = torch.amp.GradScaler
        self._looked = False
        self._waiting = [
            patch.method(kind, "scale", before=self._guarded(self._scales)),
            patch.method(kind, "step", before=self._guarded(self._scaler_steps)),
            patch.backward(before=self._guarded(self._goes_back)),
        ]

    def _stop_waiting(self) -> None:
        while self._waiting:
            self._waiting.pop().remove()

    def _scales(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Searches once for the optimizer of the call.

        If the search is not conclusive, the first optimizer step starts the run.
        """
        if self._run is None and not self._looked:
            self._looked = True
            self._begin(find(None, args[0]))

    def _goes_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Searches once, as at scale().

        A run that starts here missed the beginning of this backward() call, which is therefore replayed to its hooks.
        """
        if self._run is None and not self._looked:
            self._looked = True
            self._begin(find(None))
            if self._session is not None:
                patch.call_late_backward(args, kwargs)

    def _scaler_steps(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = optimizer_in(args, kwargs)
        if self._run is None and isinstance(optimizer, torch.optim.Optimizer):
            self._begin(find(optimizer, args[0]))

    def _steps(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._session is not None:
            if optimizer not in self._session.watched.optimizers:
                self._join(optimizer)
        elif self._run is None:
            if _is_last(self._hook):
                self._begin_at(optimizer, args, kwargs)
            elif not self._after:  # torch iterates over its hooks now, and a new one would break the iteration
                self._after = register_optimizer_step_post_hook(self._guarded(self._stepped))

    def _stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        self._after.remove()
        self._after = None
        if self._run is None:
            self._begin(find(optimizer))

    def _begin_at(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Starts a run during a call of step().

        The new hooks are called here, because torch would have called them first.
        """
        known = set(_hooks())
        self._begin(find(optimizer))
        for key in [key for key in _hooks() if key not in known]:
            _hooks()[key](optimizer, args, kwargs)

    def _begin(self, found: Found | None) -> None:
        if found is None:
            return
        waiting, self._waiting = self._waiting, []
        self._run = run = setup.watch(
            found.models,
            found.optimizers,
            found.scalers,
            url=None,
            dir=None,
            budget=None,
            config={},
            tags={},
            also={},
            guards=(),
            name=self._said.name or None,
            project=self._said.project or None,
            preset=self._said.preset,
        )
        self._session = run._session
        for handle in waiting:  # only now, so that the end of the running scale() is observed and its result is marked
            handle.remove()
        if self._session is None:
            self._over = True
            self._note("failed", "; ".join(setup.refused))
            return
        with suppress(OSError):
            note_termination(self._session.journal.folder)
        if self._said.profile:
            profiling = Profiling(self._session)
            self._session.handles += profiling.attach(self._session.guard(profiling.name))
        self._introduce(run)

    def _introduce(self, run: Run) -> None:
        if identity.rank()[0] == 0:
            chosen = settings()
            page = f"; page {text(chosen.url, 1000)}/runs/{run.id}" if chosen.url else ""
            _say(f"ammeter: watching as run {run.id}; journal in {chosen.dir / run.id}{page}")

    def _join(self, optimizer: torch.optim.Optimizer) -> None:
        """Adds an optimizer that steps for the first time after the start."""
        assert self._session is not None
        watched = self._session.watched
        if self._later >= MAX_LATER_OPTIMIZERS or is_wrapped(optimizer, list(watched.optimizers)):
            return
        self._later += 1
        found = find(optimizer)
        watched.join([] if found is None else found.models, optimizer)

    def _in_forked_child(self) -> None:
        """Prepares a forked child, whose training is separate from the parent's run."""
        if self._session is not None:
            parents, self._run, self._session = self._session, None, None
            self._later = 0
            with suppress(Exception):
                parents.unsubscribe()
                self._hook.remove()
                self._hook = register_optimizer_step_pre_hook(self._guarded(self._steps))
                self._wait_for_scaler()

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            if self._over:
                return
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
                self._over = True
                what = "this run" if self._session is None else "an optimizer that came later"
                _say(f"ammeter: {what} is not watched ({type(error).__name__}: {error}); training goes on")
                self._note("failed", f"a fault of Ammeter's own ({type(error).__name__}: {error})")

        return uncompiled(guarded)


def _hooks() -> OrderedDict[int, Any]:
    found: OrderedDict[int, Any] = sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    return found


def _is_last(handle: Any) -> bool:
    """Returns whether this is torch's last hook.

    An OrderedDict may be changed at the end of its iteration.
    """
    hooks = _hooks()
    return isinstance(hooks, OrderedDict) and next(reversed(hooks), -1) == int(handle.id)


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
