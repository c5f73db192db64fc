"""Writes complete checkpoints and reports state that the program's own checkpoints lack."""

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
    """Reports missing state in checkpoints of the program, and can write complete ones.

    every_steps, every_minutes: interval between checkpoints; without either none is written. keep: number of
    checkpoints that are kept. dir: target folder, created with mode 0700; by default `checkpoints` in the run's folder.
    parts: further state that a resume needs and watch() does not know, such as {"scheduler": scheduler}: objects with
    state_dict(). restore: read back checkpoints saved with torch.save, in a separate low-priority process; if several
    are pending, only the newest. The result is a `checkpoint.verified` event. Off by default.

    A file contains {"models", "optimizers", "scalers", "parts", "random", "step", "run"} and has mode 0600. It is
    written under a temporary name, synced, read back with weights_only=True and compared by checksum before it is
    renamed. Non-finite weights or optimizer state are not written. Training is blocked meanwhile. With several ranks
    only the first one writes; a sharded model is not written. Raises ValueError for invalid numbers.
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
        """Returns the newest checkpoint of this guard, else the program's newest complete one.

        A path of the program consists of its last folder and file name only. None if there is neither.
        """
        if self._written:
            return self._written[-1][0]
        saved = [checkpoint for checkpoint in self._duty.saved if not checkpoint.missing] if self._duty else []
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
        """Reports missing state of the program's checkpoints, once per combination.

        Nothing is reported if the program has written a complete checkpoint, because the others count as exports.
        """
        if self._child is not None:
            self._read_back(self._child, frames, last)
        if any(not checkpoint.missing and not checkpoint.sure for checkpoint in self._known().saved):
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
        """Records the verification at once, as every action of a guard."""
        duty, told = self._known(), compared(read, saved)
        names = ("outcome", "reason", "seconds", "bytes", "tensors")
        data = {"path": saved["path"], "saved_step": saved["step"], **{name: told.get(name) for name in names}}
        duty.session.journal.append(Event("checkpoint.verified", max(0, duty.step), time_ns(), data))
        duty.verified(saved["path"], saved["step"], told["outcome"])

    def remove(self) -> None:
        """Ends the child process: the run must leave none behind."""
        if self._child is not None:
            self._child.end()

    def closed(self) -> None:
        """Capture the random number states now, because the next batch may be drawn from them.

        The checkpoint itself is written when the next forward pass begins, after the schedule has advanced; without a
        recorded forward pass, one step later.
        """
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
        """Deletes this guard's oldest files. Other runs may use the same folder."""
        duty = self._known()
        self._written = [entry for entry in self._written if entry[0] != path] + [(path, step)]
        while len(self._written) > self.keep:
            self._written.pop(0)[0].unlink(missing_ok=True)
        kept = [Saved(str(own), at, (), sure=True) for own, at in self._written]
        duty.saved = [saved for saved in duty.saved if not saved.sure] + kept

    def _refusal(self) -> str:
        """Returns why no checkpoint is written, or '' if one is."""
        watched = self._known().session.watched
        if any(tensor.copies for tensor in watched.tensors):
            return "the model is sharded: its state is on all ranks"
        weights = [(watched.tensors[index].name, tensor) for index, tensor in watched.alive()]
        for optimizer in watched.optimizers:
            states = [state for state in optimizer.state.values() if isinstance(state, dict)]
            weights += [(f"the optimizer's {name}", tensor) for state in states for name, tensor in state.items()]
        bad = unseen(lambda: [name for name, tensor in weights if not _is_finite(tensor)], ())
        return f"{len(bad)} tensors are not finite, {bad[0]} first" if bad else ""

    def _state(self) -> dict[str, Any]:
        session = self._known().session
        watched = session.watched
        models = [model for ref in watched.models if (model := ref()) is not None]
        return {
            "models": [model.state_dict() for model in models],
            "optimizers": [optimizer.state_dict() for optimizer in watched.optimizers],
            "scalers": [scaler.state_dict() for scaler in watched.scalers],
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "run": session._hello.run,
        }

    def _tell(self, action: str, reason: str, before: str | None, after: str | None) -> None:
        self._known().tell(self, action, reason, **{"from": before, "to": after})

    def _path(self) -> str | None:
        latest = self.latest()
        return None if latest is None else str(latest)

    def _at(self) -> int:
        """Number of completed steps."""
        return self._known().session.row.step

    def _known(self) -> GuardRunner:
        assert self._duty is not None
        return self._duty


def _random_numbers() -> dict[str, Any]:
    """Returns the state of all random number generators that training may use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def _is_finite(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.detach()).all())


def _is_file(path: Any) -> bool:
    """Whether the path is a local file.

    A distributed checkpoint is a folder; one in a store has an address.
    """
    return isinstance(path, str) and bool(path) and Path(path).is_file()
