"""Observes a process from the import of torch until its last run has ended, and keeps notes for the next run.

A training prepares before its first step: it builds optimizer and scaler, reads a checkpoint and loads its parts. The
run that begins afterwards receives the notes of it. Each call is passed on unchanged; an error here ends the notes, and
never reaches the program. torch._dynamo is not imported.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ammeter.preparation.contents import contents_of
from ammeter.preparation.notes import MODEL, OPTIMIZER, SCALER, SCHEDULER, FileRead, Notes, Restored
from ammeter.preparation.optimizer_state import restored_counts
from ammeter.preparation.paths import absolute, path_of
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.dynamo import compiling, skip_code
from ammeter.torch_hooks.hook_points import Handle, all_or_nothing
from ammeter.torch_hooks.targets import kinds_of

MAX_WALK_SECONDS = 1.0
"""CPU time for recognising the contents of files in one process. A data set may be read file by file."""

MAX_MODELS = 16
"""Modules whose load_state_dict() is noted, because some programs load layer by layer."""

MAX_BUILT = 64
"""Live optimizers and scalers whose construction is noted."""

NAMED_PARAMETERS = 4
"""Parameters by which a discarded optimizer is recognised as one of this training."""


class Observer:
    """The observation of one process.

    Attributes:
        error: the error that ended the notes, '' if there was none.
    """

    def __init__(self) -> None:
        self.error = ""
        self._notes = Notes()
        self._handles: list[Handle] = []
        self._uses = 0
        self._walked = 0.0
        self._models = 0
        self._opened: dict[int, tuple[str, float]] = {}
        self._is_forked = False

    def begin(self) -> None:
        """Starts the notes, unless they have started; never raises."""
        if self._handles or self.error:
            return
        try:
            with all_or_nothing():
                self._handles = self._attach()
        except Exception as error:  # noqa: BLE001 - as in _safe; another version of torch may lack a name
            self.error = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Removes all patches; notes that were not taken are discarded."""
        while self._handles:
            self._handles.pop().remove()
        self._notes = Notes()

    def take(self) -> Notes:
        """Returns the notes for a run that begins, which starts new ones."""
        taken, self._notes = self._notes, Notes()
        taken.error = self.error
        for built in taken.built:  # the next run may train the same objects
            self._notes.built.add(built)
        self._walked, self._models = 0.0, 0
        return taken

    def has_built(self, candidate: object) -> bool:
        """Returns whether the construction of an optimizer or scaler was observed."""
        return candidate in self._notes.built

    def use(self) -> Use:
        """Keeps the notes going while a run lasts, for the run after it. The last remove() stops them."""
        self.begin()
        self._uses += 1
        return Use(self)

    def release(self) -> None:
        self._uses -= 1
        if not self._uses:
            self.stop()

    def in_forked_child(self) -> None:
        self._is_forked = True

    def _attach(self) -> list[Handle]:
        scalers, schedulers = kinds_of(torch.amp.GradScaler), kinds_of(LRScheduler)
        serialization: Any = torch.serialization
        safe = self._safe
        return [
            patch.method(torch.optim.Optimizer, "__init__", after=safe(self._built)),
            patch.method(torch.amp.GradScaler, "__init__", after=safe(self._built)),
            patch.method(torch.optim.Optimizer, "load_state_dict", after=safe(self._optimizer_restored)),
            *patch.methods(scalers, "load_state_dict", after=safe(self._scaler_restored)),
            *patch.methods(schedulers, "load_state_dict", after=safe(self._scheduler_restored)),
            patch.method(torch.nn.Module, "load_state_dict", after=safe(self._model_restored)),
            patch.method(serialization._open_zipfile_reader, "__init__", before=safe(self._file_opened)),
            patch.function(serialization, "_load", after=safe(self._file_read)),
            patch.function(
                serialization, "_legacy_load", before=safe(self._legacy_opened), after=safe(self._file_read)
            ),
        ]

    def _built(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if len(self._notes.built) < MAX_BUILT:
            self._notes.built.add(args[0])

    def _optimizer_restored(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        optimizer = args[0]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        data = restored_counts(optimizer, _state_dict(args, kwargs))
        self._note(OPTIMIZER, optimizer, data, tuple(map(weakref.ref, parameters[:NAMED_PARAMETERS])))

    def _scaler_restored(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        state = _state_dict(args, kwargs)
        scale = state.get("scale") if args[0].is_enabled() and isinstance(state, dict) else None
        if isinstance(scale, int | float):
            self._note(SCALER, args[0], {"scale": float(scale)})

    def _scheduler_restored(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        self._note(SCHEDULER, args[0], {"scheduler": type(args[0]).__name__})

    def _model_restored(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        self._models += 1
        if self._models <= MAX_MODELS:
            self._note(MODEL, args[0], {"model": type(args[0]).__name__})

    def _note(
        self, part: str, target: Any, data: dict[str, Any], parameters: tuple[weakref.ref[Any], ...] = ()
    ) -> None:
        self._notes.add(Restored(part, weakref.ref(target), call_site.line(), data, parameters))

    def _file_opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._open(args[1] if len(args) > 1 else kwargs.get("name_or_buffer"))

    def _legacy_opened(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._open(args[0])

    def _open(self, file: Any) -> None:
        self._opened[get_ident()] = path_of(file), perf_counter()

    def _file_read(self, _: tuple[Any, ...], __: dict[str, Any], result: Any) -> None:
        path, began = self._opened.pop(get_ident(), ("", perf_counter()))
        if isinstance(result, torch.Tensor) or self._walked > MAX_WALK_SECONDS:
            return
        seconds, cpu = perf_counter() - began, thread_time()
        contents = contents_of(result)
        self._walked += thread_time() - cpu
        if contents.is_state() or contents.weights:
            self._notes.add(FileRead(absolute(path), seconds, contents))

    def _safe(self, call: Callable[..., None]) -> Callable[..., None]:
        """Makes a callback safe: it never raises, and does nothing in a DataLoader worker or in compiled code."""

        def safe(*args: Any) -> None:
            if self.error or (compiling is not None and compiling() is not None):
                return
            try:
                with torch._C.DisableTorchFunction():
                    if not (self._is_forked and self._ends_in_worker()):
                        call(*args)
            except Exception as error:  # noqa: BLE001 - the promise: no fault of ours reaches the program
                self.error = f"{type(error).__name__}: {error}"

        skip_code(safe.__code__)
        return safe

    def _ends_in_worker(self) -> bool:
        """Stops the notes if this forked process is a DataLoader worker, which trains nothing."""
        self._is_forked = False
        worker = sys.modules.get("torch.utils.data._utils.worker")
        is_worker = worker is not None and worker.get_worker_info() is not None
        if is_worker:
            self.stop()
        return is_worker


class Use:
    """The use of the notes by one run; remove() ends it, and a second call has no effect."""

    def __init__(self, observer: Observer) -> None:
        self._observer: Observer | None = observer

    def remove(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.release()


def _state_dict(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("state_dict")


observer = Observer()
"""The observation of this process."""

os.register_at_fork(after_in_child=observer.in_forked_child)
