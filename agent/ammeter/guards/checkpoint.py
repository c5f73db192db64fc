"""Keeps a complete checkpoint beside those of the program, and says what those lack."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter, time_ns
from typing import TYPE_CHECKING, Any

import torch

from ammeter.guards.checkpoint_writer import Unreadable, write
from ammeter.guards.restore_check import compared
from ammeter.guards.restore_process import Child
from ammeter.guards.runner import Saved
from ammeter.tensors.hidden_reads import unseen
from ammeter.wire.frames import Event, Frame

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner


class Checkpoint:
    """Says at once what a checkpoint of the program lacks, and, where asked for, writes complete ones of its own.

    every_steps, every_minutes: write one when so many steps, or so much time, have passed; neither: never. keep: how
    many stay. dir: where to, a folder of mode 0700 that is made; else `checkpoints` in the run's folder. parts: what
    else the program needs to go on and watch() does not know, {"scheduler": scheduler}: anything with a state_dict().
    restore: read back what the program saves with torch.save, the newest where one comes after the other, in a process
    of its own that is nice to training; what it finds is a `checkpoint.verified`. Off unless asked for.

    A file holds {"models", "optimizers", "scalers", "parts", "random", "step", "run"}, of mode 0600. It is written
    beside its place, synced, read back with weights_only=True and compared by checksum before it takes its name.
    Weights or optimizer state that are not finite are not written. Training waits meanwhile. Of several ranks the first
    one writes; a sharded model is not written. Raises ValueError for numbers that cannot be meant.
    """

    name = "checkpoint"

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        keep: int = 3,
        dir: str | Path | None = None,
        parts: Mapping[str, Any] | None = None,
        restore: bool = False,
    ) -> None:
        for name, number in (("every_steps", every_steps), ("every_minutes", every_minutes), ("keep", keep)):
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"{name} is {number!r}; use a number above 0")
        for name, part in (parts or {}).items():
            if not callable(getattr(part, "state_dict", None)):
                raise ValueError(f"parts[{name!r}] is a {type(part).__name__}; use what has a state_dict()")
        self.every_steps, self.every_minutes, self.keep = every_steps, every_minutes, keep
        self.dir = None if dir is None else Path(dir).expanduser().absolute()
        self.parts = dict(parts or {})
        self.restore = restore
        self._child: Child | None = None
        self._duty: GuardRunner | None = None
        self._written: list[tuple[Path, int]] = []

    def latest(self) -> Path | None:
        """The path to go back to: the newest that this guard wrote, else the newest complete one of the program, of
        which the last folder and the name are known. None where there is neither."""
        if self._written:
            return self._written[-1][0]
        saved = [each for each in self._duty.saved if not each.missing] if self._duty else []
        return Path(saved[-1].path) if saved else None

    def attach(self, duty: GuardRunner) -> None:
        self._duty = duty
        self._written = []
        self._step, self._time = duty.session.row.step, monotonic()
        self._named: set[tuple[str, ...]] = set()
        self._random: dict[str, Any] | None = None
        self._refused = ""
        self._folder = self.dir or duty.session.journal.folder.parent / "checkpoints"
        self._writes = duty.session._hello.rank == 0 and bool(self.every_steps or self.every_minutes)
        self._child = Child(self._restored) if self.restore else None

    def heard(self, frames: Sequence[Frame], last: bool = False) -> None:
        """What a checkpoint of the program lacks is told once; beside a complete one it is an export."""
        if self._child is not None:
            self._read_back(self._child, frames, last)
        if any(not each.missing and not each.sure for each in self._known().saved):
            return
        for frame in frames:
            if isinstance(frame, Event) and frame.name == "checkpoint.saved" and frame.data.get("missing"):
                missing = tuple(map(str, frame.data["missing"]))
                if missing not in self._named:
                    self._named.add(missing)
                    path = frame.data.get("path") or "in memory"
                    self._tell("found incomplete", f"{path} lacks {', '.join(missing)}", None, self._path())

    def _read_back(self, child: Child, frames: Sequence[Frame], last: bool) -> None:
        if last:
            child.look()
            child.end()
            return
        for frame in frames:
            if isinstance(frame, Event) and frame.name == "checkpoint.saved" and _is_file(frame.data.get("path")):
                child.read({**frame.data, "step": frame.step})

    def _restored(self, saved: dict[str, Any], read: dict[str, Any]) -> None:
        """Written at once, as what a guard does is."""
        duty, told = self._known(), compared(read, saved)
        names = ("outcome", "reason", "seconds", "bytes", "tensors")
        data = {"path": saved["path"], "saved_step": saved["step"], **{name: told.get(name) for name in names}}
        duty.session.journal.append(Event("checkpoint.verified", max(0, duty.step), time_ns(), data))
        duty.verified(saved["path"], saved["step"], told["outcome"])

    def remove(self) -> None:
        """Whoever ends the run does not leave a process behind."""
        if self._child is not None:
            self._child.end()

    def closed(self) -> None:
        """Random numbers are kept as they stand now: the next batch may be drawn from them. The rest is written when
        the next forward pass begins, where the schedule has moved on; where none is heard, a step later."""
        if self._child is not None:
            self._child.look()
        if not self._writes:
            return
        self.begun()
        done = self._at()
        due = self.every_steps is not None and done - self._step >= self.every_steps
        if due or (self.every_minutes is not None and monotonic() - self._time >= 60 * self.every_minutes):
            self._random = _random_numbers()

    def begun(self) -> None:
        if self._random is not None:
            self._step = self._at()
            self._write(self._random)
            self._random, self._time = None, monotonic()

    def _write(self, random_numbers: dict[str, Any]) -> None:
        refused = self._refusal()
        if refused:
            if refused != self._refused:
                self._tell("did not write", refused, None, self._path())
            self._refused = refused
            return
        began, done = perf_counter(), self._at()
        path = self._folder / f"step-{done:08d}.pt"
        try:
            size = write(path, {**self._state(), "random": random_numbers, "step": done})
        except (OSError, Unreadable) as error:
            self._tell("could not write", f"{type(error).__name__}: {error}", None, self._path())
            return
        self._keep(path, done)
        reason = f"{size} bytes in {perf_counter() - began:.3f} s, read back"
        self._tell("wrote", reason, None, str(path))

    def _keep(self, path: Path, step: int) -> None:
        """Only what this guard wrote goes: other runs may keep theirs in the same folder."""
        duty = self._known()
        self._written = [each for each in self._written if each[0] != path] + [(path, step)]
        while len(self._written) > self.keep:
            self._written.pop(0)[0].unlink(missing_ok=True)
        kept = [Saved(str(own), at, (), sure=True) for own, at in self._written]
        duty.saved = [each for each in duty.saved if not each.sure] + kept

    def _refusal(self) -> str:
        """Why nothing is written, '' where it is."""
        watched = self._known().session.watched
        if any(tensor.copies for tensor in watched.tensors):
            return "the model is sharded: its state is on all ranks"
        weights = [(watched.tensors[index].name, tensor) for index, tensor in watched.alive()]
        for optimizer in watched.optimizers:
            states = [each for each in optimizer.state.values() if isinstance(each, dict)]
            weights += [(f"the optimizer's {name}", each) for state in states for name, each in state.items()]
        bad = unseen(lambda: [name for name, each in weights if not _is_finite(each)], ())
        return f"{len(bad)} tensors are not finite, {bad[0]} first" if bad else ""

    def _state(self) -> dict[str, Any]:
        session = self._known().session
        watched = session.watched
        models = [model for ref in watched.models if (model := ref()) is not None]
        return {
            "models": [model.state_dict() for model in models],
            "optimizers": [each.state_dict() for each in watched.optimizers],
            "scalers": [each.state_dict() for each in watched.scalers],
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "run": session._hello.run,
        }

    def _tell(self, action: str, reason: str, before: str | None, after: str | None) -> None:
        self._known().tell(self, action, reason, **{"from": before, "to": after})

    def _path(self) -> str | None:
        latest = self.latest()
        return None if latest is None else str(latest)

    def _at(self) -> int:
        """Steps that are done."""
        return self._known().session.row.step

    def _known(self) -> GuardRunner:
        assert self._duty is not None
        return self._duty


def _random_numbers() -> dict[str, Any]:
    """Where the generators stand that training may draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def _is_finite(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.detach()).all())


def _is_file(path: Any) -> bool:
    """Whether it lies on this host; a distributed checkpoint is a folder, and one in a store has an address."""
    return isinstance(path, str) and bool(path) and Path(path).is_file()
