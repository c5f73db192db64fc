"""The calls that a program made before its run began: files that it read, and objects that loaded a state.

Objects of the program are referenced weakly, so that a note keeps nothing alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ammeter.torch_hooks.weak_id_set import WeakIdSet

if TYPE_CHECKING:
    import torch

    from ammeter.preparation.contents import Contents

MAX_NOTES = 64
"""Notes that are kept. A program needs about five to resume; data sets of many files must not displace them."""

OPTIMIZER, SCALER, SCHEDULER, MODEL = "optimizer", "scaler", "scheduler", "model"


class FileRead(msgspec.Struct, frozen=True):
    """A file that the program read with torch.load, by what it contains."""

    path: str
    seconds: float
    contents: Contents


class Restored(msgspec.Struct, frozen=True):
    """A call of load_state_dict().

    Attributes:
        part: OPTIMIZER, SCALER, SCHEDULER or MODEL.
        target: the object that loaded a state.
        line: the program's line.
        data: numbers of the call, which depend on the part.
        parameters: the first parameters of an optimizer.
    """

    part: str
    target: weakref.ref[Any]
    line: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    parameters: tuple[weakref.ref[Any], ...] = ()


class Notes:
    """The notes in the order of the calls.

    Attributes:
        built: the optimizers and scalers whose construction was observed.
        error: the error that ended the notes, '' if there was none.
        is_continued: whether an earlier process has trained in the run.
        strays: the tensors of torch's own classes with the shape of a weight that were alive when the run began, and
            that it does not watch. Mostly there are none, so that no container needs to be searched.
    """

    def __init__(self) -> None:
        self.error = ""
        self.is_continued = False
        self.built: WeakIdSet[Any] = WeakIdSet(())
        self.strays: WeakIdSet[torch.Tensor] = WeakIdSet(())
        self._notes: list[FileRead | Restored] = []

    def __iter__(self) -> Iterator[FileRead | Restored]:
        return iter(list(self._notes))

    def add(self, note: FileRead | Restored) -> None:
        """Adds a note. Beyond MAX_NOTES the oldest file without state of a training is dropped, else the oldest."""
        notes = self._notes
        notes.append(note)
        if len(notes) > MAX_NOTES:
            dropped = next(
                (old for old in notes if isinstance(old, FileRead) and not old.contents.is_state()), notes[0]
            )
            notes.remove(dropped)

    def files(self) -> list[FileRead]:
        return [note for note in self if isinstance(note, FileRead)]

    def restored(self, part: str) -> list[Restored]:
        return [note for note in self if isinstance(note, Restored) and note.part == part]

    def of(self, part: str, target: object) -> Restored | None:
        """Returns the last note on this object, None if it loaded no state."""
        return next((note for note in reversed(self.restored(part)) if note.target() is target), None)
