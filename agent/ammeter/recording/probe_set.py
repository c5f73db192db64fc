"""The probes of a session: those that read a signal, the resources and the values of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.torch_hooks.hook_points import all_or_nothing

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeKinds
    from ammeter.recording.session import Session


class ProbeSet:
    """The probes of one session.

    Attributes:
        signals: the probes that complete a row, in this order; resources is the last.
        resources: closes every step.
        user: records the values from run.log, after all others.
        finishers: (name, finish) of each probe that completes a row; the directives, which read it, are the last.
    """

    def __init__(self, session: Session, kinds: ProbeKinds) -> None:
        self._session = session
        self.resources = kinds.resources(session)
        self.user = kinds.user(session)
        self.signals: list[Any] = [*(kind(session) for kind in kinds.signals), self.resources]
        finishing = (*self.signals, self.user, session.directives)
        self.finishers = [(probe.name, probe.finish) for probe in finishing if hasattr(probe, "finish")]
        self._on_skip = self._guarded("skipped")
        self._on_reset = self._guarded("reset")
        self._on_join = self._guarded("joined")

    def attach(self, handles: list[Any]) -> None:
        """Attaches all probes and adds their handles to the list.

        A probe that fails, such as in another torch version, is switched off.
        """
        for probe in (*self.signals, self.user):
            guard = self._session.guard(probe.name, any_thread=getattr(probe, "any_thread", False))
            try:
                with all_or_nothing():
                    handles += probe.attach(guard)
            except Exception as error:  # noqa: BLE001 - as in guard
                self._session.record_fault(probe.name, error)

    def methods(self, name: str) -> list[Callable[..., Any]]:
        """Returns this method of each signal probe that has it."""
        return [getattr(probe, name) for probe in self.signals if hasattr(probe, name)]

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        for notify in self._on_skip:
            notify(optimizer)

    def reset(self) -> None:
        """Resets the probes that check the order of calls, at the start of a followed step."""
        for reset in self._on_reset:
            reset()

    def joined(self, optimizer: torch.optim.Optimizer) -> None:
        """Notifies the probes that an optimizer is watched from now on."""
        for notify in self._on_join:
            notify(optimizer)

    def _guarded(self, method: str) -> list[Callable[..., None]]:
        return [
            self._session.guard(probe.name)(getattr(probe, method)) for probe in self.signals if hasattr(probe, method)
        ]
