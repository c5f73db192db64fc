"""Reports which objects of the training loaded a state: before watch(), from the notes, and after it.

Files that the program read are reported by the checkpoint probe, and loads after watch() by the probe of the object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ammeter.preparation.notes import MODEL, OPTIMIZER, SCALER, SCHEDULER, Restored
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.targets import is_wrapped, kinds_of

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


class Preparation:
    name = "preparation"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        guard(self._report_notes)()
        return [
            *patch.methods(kinds_of(LRScheduler), "load_state_dict", after=guard(self._scheduler_loaded)),
            patch.method(torch.nn.Module, "load_state_dict", after=guard(self._model_loaded)),
        ]

    def _report_notes(self) -> None:
        notes = self._session.preparation
        if notes.error:
            self._session.emit("probe.failed", {"probe": self.name, "error": notes.error})
        if notes.is_continued:
            self._session.emit("run.continued", {})
        report = {
            OPTIMIZER: self._report_optimizer,
            SCALER: self._report_scaler,
            SCHEDULER: self._report_scheduler,
            MODEL: self._report_model,
        }
        for part, report_part in report.items():
            for note in notes.restored(part):
                report_part(note.target(), note)

    def _report_optimizer(self, optimizer: Any, note: Restored) -> None:
        """Reports a restored optimizer, or one that was discarded after it had loaded the state of this training."""
        watched = self._session.watched
        if optimizer in watched.optimizers or (optimizer is not None and is_wrapped(optimizer, watched.optimizers)):
            self._session.emit("optimizer.restored", {**note.data, "updates": None})
        elif any((parameter := ref()) is not None and watched.knows(parameter) for ref in note.parameters):
            data = {"optimizer": note.data["optimizer"], "caller": note.line}
            self._session.emit("optimizer.discarded", data)

    def _report_scaler(self, scaler: Any, note: Restored) -> None:
        scalers = list(self._session.watched.scalers)
        if scaler is not None and any(scaler is own for own in scalers):
            which = {"scaler": [scaler is own for own in scalers].index(True)} if len(scalers) > 1 else {}
            self._session.emit("scaler.restored", {**note.data, **which})

    def _report_scheduler(self, scheduler: Any, note: Restored) -> None:
        if getattr(scheduler, "optimizer", None) in self._session.watched.optimizers:
            self._session.emit("scheduler.restored", {**note.data, "caller": note.line})

    def _report_model(self, model: Any, note: Restored) -> None:
        if model is not None and self._is_trained(model):
            self._session.emit("model.restored", {**note.data, "caller": note.line})

    def _is_trained(self, model: torch.nn.Module) -> bool:
        """Whether a module has a weight that an optimizer of this run trains."""
        watched = self._session.watched
        return any(watched.optimizers_of([parameter]) for parameter in model.parameters() if watched.knows(parameter))

    def _scheduler_loaded(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if getattr(args[0], "optimizer", None) in self._session.watched.optimizers:
            data = {"scheduler": type(args[0]).__name__, "caller": call_site.line()}
            self._session.emit("scheduler.restored", data)

    def _model_loaded(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if self._is_trained(args[0]):
            self._session.emit("model.restored", {"model": type(args[0]).__name__, "caller": call_site.line()})
