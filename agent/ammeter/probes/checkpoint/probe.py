"""Reports saved and loaded checkpoints: contents, missing parts, duration and access by other accounts.

The patches are where torch itself looks up names, so that `from torch import save` is covered, too. The probe examines
only the object that is passed and never reads a file. A program may save in a thread of its own; such events wait for
the end of a step.

Lightning, for example, saves into a buffer and writes the buffer through fsspec. The path is then the one that the same
thread opens next through fsspec, and the file is examined after the step.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.checkpoint.contents import Contents, contents, of_specs
from ammeter.probes.checkpoint.exposure import Exposure, exposure
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row
    from ammeter.torch_hooks.targets import Watched

MIN_SHARE = 0.01
"""Share of the trained weights below which a file without other training state is not a checkpoint of this run."""

OF_THE_MODEL = 0.5
"""Minimum share of a file's weights with the shape of a watched tensor; a file with less is data or another model.

It is also the minimum of float32 and float64 elements in a file, relative to those that are trained.
"""

LOOK_AGAIN = 64
"""Steps between checks for modules whose import in another thread may have finished.

It is also the number of steps that a buffer of another thread may wait for its file.
"""

MAX_FILES = 1000
"""Files of a distributed checkpoint whose sizes are added up, to bound the number of stat calls."""

NOT_THERE = Exposure("", [], "")
"""The exposure of a buffer or of a file in remote storage, about which nothing is known."""

Guard = Callable[..., Any]


@dataclass
class Unplaced:
    """A checkpoint saved into a buffer whose path is unknown yet.

    Attributes:
        data: the data of its event.
        looks: number of checks whether the buffer was written.
    """

    data: dict[str, Any]
    looks: int = 0


class Checkpoint:
    name = "checkpoint"
    any_thread = True
    """A program may save in a thread of its own; events of that thread are queued."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._judge = Relevance(session.watched)
        self._began: dict[tuple[int, str], float] = {}
        self._saved: dict[int, Contents] = {}
        self._paths: dict[int, str] = {}
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._unplaced: dict[int, Unplaced] = {}
        self._placed: deque[dict[str, Any]] = deque()
        self._heard: list[Callable[..., Any]] = []
        self._attached = False
        self._modules = 0
        self._handles: list[patch.Handle] = []
        self._thread = threading.get_ident()

    def attach(self, guard: Guard) -> list[Any]:
        self._guard = guard
        self._handles += self._of_torch(torch.serialization)
        self._heard = []
        self._attached = True
        self._hear_more()
        return [self]

    def remove(self) -> None:
        """Removes all patches, including later ones; emits queued events in the open step."""
        self._attached = False
        while self._handles:
            self._handles.pop().remove()
        self._look_at_files()
        for thread in list(self._unplaced):
            self._give_up(thread)
        while self._waiting:
            self._session.emit(*self._waiting.popleft())

    def finish(self, row: Row) -> None:
        self._look_at_files()
        while self._waiting:
            row.events.append(self._waiting.popleft())
        if self._attached and (len(sys.modules) != self._modules or row.step % LOOK_AGAIN == 0):
            self._modules = len(sys.modules)
            self._hear_more()

    def _hear_more(self) -> None:
        """Patches libraries that the program has imported since.

        The import may happen at any time, and in another thread that has not finished it yet.
        """
        distributed = sys.modules.get("torch.distributed.checkpoint")
        others = {
            self._of_distributed: distributed if hasattr(distributed, "StorageWriter") else None,
            self._of_safetensors: getattr(sys.modules.get("safetensors"), "torch", None),
            self._of_fsspec: getattr(getattr(sys.modules.get("fsspec"), "spec", None), "AbstractFileSystem", None),
        }
        for taps, module in others.items():
            if module is not None and taps not in self._heard:
                self._heard.append(taps)
                self._handles += taps(module)

    def _of_torch(self, module: Any) -> list[patch.Handle]:
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

    def _of_distributed(self, module: Any) -> list[patch.Handle]:
        """Patches the functions behind load, and behind save, save_state_dict and async_save's threads."""
        return [
            self._around(module.state_dict_saver, "_save_state_dict", self._shards_saved),
            self._around(module.state_dict_loader, "_load_state_dict", self._shards_loaded),
        ]

    def _of_safetensors(self, module: Any) -> list[patch.Handle]:
        return [self._around(module, "serialize_file", self._tensors_saved)]

    def _of_fsspec(self, kind: Any) -> list[patch.Handle]:
        """Patches the method that opens a file in every kind of fsspec storage."""
        return [patch.method(kind, "open", after=self._guard(self._opened_by_fsspec))]

    def _opened_by_fsspec(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        """Assigns the file that this thread opens for writing to its last saved buffer."""
        if threading.get_ident() not in self._unplaced:
            return
        path, mode = _two(args[1:], kwargs, "path", "mode")
        if "r" in (mode or "rb"):
            return
        data = self._unplaced.pop(threading.get_ident()).data
        data["path"] = _place_in(args[0], os.fspath(path))
        self._placed.append(data)
        if threading.get_ident() != self._thread:
            self._waiting.append(("checkpoint.saved", data))

    def _look_at_files(self) -> None:
        """Examines written files and gives up buffers without a file.

        Files exist only now, because a transaction ends after the call that opened its file. A buffer of the training
        thread is not written after its step; a buffer of another thread may take longer.
        """
        while self._placed:
            data = self._placed.popleft()
            data.update(_of_file(data["path"]))
        for thread, held in list(self._unplaced.items()):
            held.looks += 1
            if thread == self._thread or held.looks > LOOK_AGAIN:
                self._give_up(thread)

    def _give_up(self, thread: int) -> None:
        held = self._unplaced.pop(thread, None)  # the other thread may have opened its file meanwhile
        if held is not None and thread != self._thread:
            self._waiting.append(("checkpoint.saved", held.data))

    def _around(self, module: Any, name: str, after: Callable[..., None]) -> patch.Handle:
        def begin(_: tuple[Any, ...], __: dict[str, Any]) -> None:
            self._began[threading.get_ident(), name] = perf_counter()

        return patch.function(module, name, before=self._guard(begin), after=self._guard(after))

    def _seconds(self, name: str) -> float:
        now = perf_counter()
        return now - self._began.pop((threading.get_ident(), name), now)

    def _object_saved(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        """Stores the contents until the writer ends the file, next in the same thread."""
        if not isinstance(args[0], torch.Tensor) and not _within("_save_state_dict"):
            self._saved[threading.get_ident()] = contents(args[0])

    def _file_ended(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        found = self._saved.pop(threading.get_ident(), None)
        seconds = self._seconds("_save")
        if found is not None and args[1] is None:
            self._tell_saved(_path_of(getattr(args[0], "name", None) or getattr(args[0], "buffer", "")), seconds, found)

    def _legacy_saved(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if not isinstance(args[0], torch.Tensor) and not _within("_save_state_dict"):
            self._tell_saved(_path_of(args[1]), self._seconds("_legacy_save"), contents(args[0]))

    def _tensors_saved(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        specs, path = (*args, *kwargs.values())[:2]
        self._tell_saved(_path_of(path), self._seconds("serialize_file"), of_specs(specs))

    def _shards_saved(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        state, writer = _two(args, kwargs, "state_dict", "storage_writer")
        self._tell_saved(_folder_of(writer), self._seconds("_save_state_dict"), contents(state))

    def _opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._paths[threading.get_ident()] = _path_of(args[1] if len(args) > 1 else kwargs.get("name_or_buffer"))

    def _loaded(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        self._tell_restored(self._paths.pop(threading.get_ident(), ""), self._seconds("_load"), result)

    def _legacy_loaded(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        self._tell_restored(_path_of(args[0]), self._seconds("_legacy_load"), result)

    def _shards_loaded(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        state, reader = _two(args, kwargs, "state_dict", "storage_reader")
        self._tell_restored(_folder_of(reader), self._seconds("_load_state_dict"), state)

    def _tell_saved(self, path: str, seconds: float, found: Contents) -> None:
        if not self._judge.is_ours(found):
            return
        missing = self._judge.missing(found)
        data = {"path": _whole(path), "seconds": seconds, "contents": found.plain(), "missing": missing}
        data["steps"] = self._steps_behind()
        data.update(_of_file(path))
        if not path:
            self._give_up(threading.get_ident())
            self._unplaced[threading.get_ident()] = Unplaced(data)
        elif data["bytes"] is None:
            self._placed.append(data)
        if path or threading.get_ident() == self._thread:
            self._tell("checkpoint.saved", data)

    def _steps_behind(self) -> int:
        """Steps of this process, including an open step that was applied or skipped."""
        row = self._session.row
        return row.step + bool(row.stepped or row.skipped)

    def _tell_restored(self, path: str, seconds: float, loaded: Any) -> None:
        if isinstance(loaded, torch.Tensor) or _within("_load_state_dict"):
            return
        found = contents(loaded)
        if self._judge.is_ours(found):
            self._tell("checkpoint.restored", {"path": _whole(path), "seconds": seconds, "contents": found.plain()})

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        """Emits an event, or queues it outside the training thread, which owns the session."""
        if threading.get_ident() == self._thread:
            self._session.emit(event, data)
        else:
            self._waiting.append((event, data))


class Relevance:
    """Decides whether a file is a checkpoint of this run, and which parts it lacks."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def is_ours(self, found: Contents) -> bool:
        """Whether an object is a checkpoint of this run.

        Data that programs save has neither training state nor weights with the shapes of watched tensors.
        """
        if found.is_state():
            return True
        weights = sum(found.weights.values())
        trained = sum(self._trained().values())
        if not weights or weights < MIN_SHARE * trained:
            return False
        shapes = {tensor.shape for tensor in self._watched.tensors}
        return sum(found.shapes[shape] for shape in shapes) >= OF_THE_MODEL * weights

    def missing(self, found: Contents) -> list[str]:
        """The missing parts that training needs to resume exactly."""
        wide = sum(found.weights[dtype] for dtype in _WIDE)
        needs_wide = sum(self._trained()[dtype] for dtype in _WIDE)
        return [
            name
            for name, absent in (
                ("weights", not found.weights),
                ("float32 weights", bool(found.weights) and wide < OF_THE_MODEL * needs_wide),
                ("optimizer", not found.optimizer),
                ("scaler", not found.scaler and any(scaler.is_enabled() for scaler in self._watched.scalers)),
            )
            if absent
        ]

    def _trained(self) -> Counter[str]:
        """Elements by dtype of the weights that optimizers step."""
        counted: Counter[str] = Counter()
        for optimizer in self._watched.optimizers:
            for _, index in zip(*self._watched.parameters(optimizer), strict=True):
                tensor = self._watched.tensors[index]
                counted[tensor.dtype] += tensor.numel
        return counted


_WIDE = ("float32", "float64")

_DISTRIBUTED = os.path.join("torch", "distributed", "checkpoint", "")


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


def _two(args: tuple[Any, ...], kwargs: dict[str, Any], first: str, second: str) -> tuple[Any, Any]:
    given = {**dict(zip((first, second), args, strict=False)), **kwargs}
    return given.get(first), given.get(second)


def _path_of(file: Any) -> str:
    """The path of a file, given by name or as an object; '' for buffers."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
    storage, path = getattr(file, "fs", None), getattr(file, "path", None)
    if hasattr(storage, "unstrip_protocol") and isinstance(path, str):
        return _place_in(storage, path)
    return os.fspath(name) if isinstance(name, str | os.PathLike) else ""


def _place_in(storage: Any, path: str) -> str:
    """A path in fsspec storage, with its protocol unless the file is local."""
    place: str = storage.unstrip_protocol(storage._strip_protocol(path))
    return place.removeprefix("file://").removeprefix("local://")


def _folder_of(storage: Any) -> str:
    return _path_of(getattr(storage, "checkpoint_id", None) or getattr(storage, "path", ""))


def _whole(path: str) -> str:
    """The absolute path, because findings are read elsewhere and later; unchanged with a protocol."""
    return path if not path or "://" in path else os.path.abspath(path)


def _of_file(path: str) -> dict[str, Any]:
    """Size and exposure of a file, unknown if it does not exist.

    The exposure of a distributed checkpoint is that of its first file.
    """
    try:
        files = _files(path)[:MAX_FILES]
        size = sum(os.stat(file).st_size for file in files) if files else None
        found = exposure(files[0]) if files else NOT_THERE
    except OSError:
        size, found = None, NOT_THERE
    return {"bytes": size, "mode": found.mode, "exposed": found.abilities, "by": found.by}


def _files(path: str) -> list[str]:
    if not path or not os.path.isdir(path):
        return [path] if path else []
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_file()]
