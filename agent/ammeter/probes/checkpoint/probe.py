"""Reports saved and loaded checkpoints: contents, missing parts, duration and access by other accounts.

The patches are where torch itself looks up names, so that `from torch import save` is covered, too. The probe examines
only the object that is passed and never reads a file. A program may save in a thread of its own; such events wait for
the end of a step.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ammeter.preparation.contents import Contents, contents_of, contents_of_specs
from ammeter.preparation.notes import FileRead
from ammeter.preparation.paths import absolute, folder_of, path_in_storage, path_of
from ammeter.probes.checkpoint.files import size_and_exposure
from ammeter.probes.checkpoint.relevance import Relevance
from ammeter.probes.checkpoint.unwritten import UnwrittenCheckpoints
from ammeter.probes.origin.graph import reproducer
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.hook_points import Handle

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

IMPORT_CHECK_STEPS = 64
"""Steps between checks for modules whose import in another thread may have finished."""

_DISTRIBUTED = os.path.join("torch", "distributed", "checkpoint", "")

Guard = Callable[..., Any]


class Checkpoint:
    name = "checkpoint"
    any_thread = True
    """A program may save in a thread of its own; events of that thread are queued."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._relevance = Relevance(session.watched)
        self._began: dict[tuple[int, str], float] = {}
        self._saved: dict[int, Contents] = {}
        self._opened_paths: dict[int, str] = {}
        self._queue: deque[tuple[str, dict[str, Any]]] = deque()
        self._unwritten = UnwrittenCheckpoints(self._queue)
        self._patched: list[Callable[..., Any]] = []
        self._attached = False
        self._module_count = 0
        self._handles: list[Handle] = []
        self._thread = threading.get_ident()

    def attach(self, guard: Guard) -> list[Any]:
        self._guard = guard
        self._handles += self._patch_torch(torch.serialization)
        self._patched = []
        self._attached = True
        self._patch_imported()
        guard(self._report_notes)()
        return [self]

    def remove(self) -> None:
        """Removes all patches, including later ones; emits queued events in the open step."""
        self._attached = False
        while self._handles:
            self._handles.pop().remove()
        self._unwritten.close()
        while self._queue:
            self._session.emit(*self._queue.popleft())

    def finish(self, row: Row) -> None:
        self._unwritten.examine()
        while self._queue:
            row.events.append(self._queue.popleft())
        if self._attached and (len(sys.modules) != self._module_count or row.step % IMPORT_CHECK_STEPS == 0):
            self._module_count = len(sys.modules)
            self._patch_imported()

    def _patch_imported(self) -> None:
        """Patches libraries that the program has imported since.

        The import may happen at any time, and in another thread that has not finished it yet.
        """
        distributed = sys.modules.get("torch.distributed.checkpoint")
        libraries = {
            self._patch_distributed: distributed if hasattr(distributed, "StorageWriter") else None,
            self._patch_safetensors: getattr(sys.modules.get("safetensors"), "torch", None),
            self._patch_fsspec: getattr(getattr(sys.modules.get("fsspec"), "spec", None), "AbstractFileSystem", None),
        }
        for patch_library, module in libraries.items():
            if module is not None and patch_library not in self._patched:
                self._patched.append(patch_library)
                self._handles += patch_library(module)

    def _patch_torch(self, module: Any) -> list[Handle]:
        """Patches torch.serialization.

        torch.save calls _save inside a writer that ends the file. The legacy format and torch.load are one call each.
        """
        guard = self._guard
        return [
            self._around(module, "_save", self._object_saved),
            patch.method(module._open_zipfile_writer_file, "__exit__", after=guard(self._file_ended)),
            patch.method(module._open_zipfile_writer_buffer, "__exit__", after=guard(self._file_ended)),
            self._around(module, "_legacy_save", self._legacy_saved),
            patch.method(module._open_zipfile_reader, "__init__", before=guard(self._opened)),
            self._around(module, "_load", self._loaded),
            self._around(module, "_legacy_load", self._legacy_loaded),
        ]

    def _patch_distributed(self, module: Any) -> list[Handle]:
        """Patches the functions behind load, and behind save, save_state_dict and async_save's threads."""
        return [
            self._around(module.state_dict_saver, "_save_state_dict", self._shards_saved),
            self._around(module.state_dict_loader, "_load_state_dict", self._shards_loaded),
        ]

    def _patch_safetensors(self, module: Any) -> list[Handle]:
        """Patches the functions behind save_file, and behind save, which returns the bytes of a file."""
        in_memory = [self._around(module, "serialize", self._bytes_made)] if hasattr(module, "serialize") else []
        return [self._around(module, "serialize_file", self._tensors_saved), *in_memory]

    def _patch_fsspec(self, kind: Any) -> list[Handle]:
        """Patches the method that opens a file in every kind of fsspec storage."""
        return [patch.method(kind, "open", after=self._guard(self._opened_by_fsspec))]

    def _opened_by_fsspec(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        if not self._unwritten.has_buffer():
            return
        path, mode = _arguments(args[1:], kwargs, "path", "mode")
        if "r" not in (mode or "rb"):
            self._unwritten.opened(path_in_storage(args[0], os.fspath(path)))

    def _around(self, module: Any, name: str, after: Callable[..., None]) -> Handle:
        def begin(_: tuple[Any, ...], __: dict[str, Any]) -> None:
            self._began[threading.get_ident(), name] = perf_counter()

        return patch.function(module, name, before=self._guard(begin), after=self._guard(after))

    def _seconds(self, name: str) -> float:
        now = perf_counter()
        return now - self._began.pop((threading.get_ident(), name), now)

    def _object_saved(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        """Stores the contents until the writer ends the file, next in the same thread."""
        if not isinstance(args[0], torch.Tensor) and not _within("_save_state_dict"):
            self._saved[threading.get_ident()] = contents_of(args[0])

    def _file_ended(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        contents = self._saved.pop(threading.get_ident(), None)
        seconds = self._seconds("_save")
        if contents is not None and args[1] is None:
            file = getattr(args[0], "name", None) or getattr(args[0], "buffer", "")
            self._emit_saved(path_of(file), seconds, contents)

    def _legacy_saved(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if not isinstance(args[0], torch.Tensor) and not _within("_save_state_dict"):
            self._emit_saved(path_of(args[1]), self._seconds("_legacy_save"), contents_of(args[0]))

    def _tensors_saved(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        specs, path = (*args, *kwargs.values())[:2]
        self._emit_saved(path_of(path), self._seconds("serialize_file"), contents_of_specs(specs))

    def _bytes_made(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        self._emit_saved("", self._seconds("serialize"), contents_of_specs((*args, *kwargs.values())[0]))

    def _shards_saved(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        state, writer = _arguments(args, kwargs, "state_dict", "storage_writer")
        self._emit_saved(folder_of(writer), self._seconds("_save_state_dict"), contents_of(state))

    def _opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        file = args[1] if len(args) > 1 else kwargs.get("name_or_buffer")
        self._opened_paths[threading.get_ident()] = path_of(file)

    def _loaded(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        self._emit_restored(self._opened_paths.pop(threading.get_ident(), ""), self._seconds("_load"), result)

    def _legacy_loaded(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        self._emit_restored(path_of(args[0]), self._seconds("_legacy_load"), result)

    def _shards_loaded(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        state, reader = _arguments(args, kwargs, "state_dict", "storage_reader")
        self._emit_restored(folder_of(reader), self._seconds("_load_state_dict"), state)

    def _emit_saved(self, path: str, seconds: float, contents: Contents) -> None:
        if self._is_reproducer(path) or not self._relevance.is_checkpoint(contents):
            return
        data = {
            "path": absolute(path),
            "seconds": seconds,
            "contents": contents.plain(),
            "missing": self._relevance.missing(contents),
            "steps": self._completed_steps(),
            **size_and_exposure(path),
        }
        if not path:
            self._unwritten.add_buffer(data)
        elif data["bytes"] is None:
            self._unwritten.add_file(data)
        else:
            self._unwritten.add_written(data)
        if path or threading.get_ident() == self._thread:
            self._emit("checkpoint.saved", data)

    def _is_reproducer(self, path: str) -> bool:
        """Whether Ammeter itself writes the file, with the operands of an operator."""
        return Path(path).parent == self._session.journal.folder.parent / reproducer.FOLDER

    def _completed_steps(self) -> int:
        """Steps of this process, including an open step that was applied or skipped."""
        row = self._session.row
        return row.step + bool(row.stepped or row.skipped)

    def _report_notes(self) -> None:
        """Reports the files that the program read before watch()."""
        for file in self._session.preparation.files():
            self._emit_read(file)

    def _emit_restored(self, path: str, seconds: float, loaded: Any) -> None:
        if isinstance(loaded, torch.Tensor) or _within("_load_state_dict"):
            return
        file = FileRead(absolute(path), seconds, contents_of(loaded))
        if self._emit_read(file):
            self._session.preparation.add(file)

    def _emit_read(self, file: FileRead) -> bool:
        """Emits checkpoint.restored; returns whether the file is a checkpoint of this run."""
        is_checkpoint = self._relevance.is_checkpoint(file.contents)
        if is_checkpoint:
            data = {"path": file.path, "seconds": file.seconds, "contents": file.contents.plain()}
            self._emit("checkpoint.restored", data | {"fits": self._relevance.fits(file.contents)})
        return is_checkpoint

    def _emit(self, event: str, data: dict[str, Any]) -> None:
        """Emits an event, or queues it outside the training thread, which owns the session."""
        if threading.get_ident() == self._thread:
            self._session.emit(event, data)
        else:
            self._queue.append((event, data))


def _within(name: str) -> bool:
    """Whether a function of torch.distributed.checkpoint is on the stack.

    These functions save and load parts with torch.save and torch.load.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == name and _DISTRIBUTED in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], first: str, second: str) -> tuple[Any, Any]:
    """The values of a call's first two parameters, given by position or by name."""
    given = {**dict(zip((first, second), args, strict=False)), **kwargs}
    return given.get(first), given.get(second)
