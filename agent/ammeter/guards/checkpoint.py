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
from ammeter.guards.restore_check import compare
from ammeter.guards.restore_process import RestoreProcess
from ammeter.guards.runner import SavedCheckpoint
from ammeter.tensors.hidden_reads import unseen
from ammeter.wire.frames import Event, Frame

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner


class Checkpoint:
    """Reports missing state in checkpoints of the program, and can write complete ones.

    every_steps, every_minutes: interval between checkpoints; without either none is written. keep: number of
    checkpoints that are kept. dir: target folder, created with mode 0700; by default `checkpoints` in the run's folder.
    parts: further state that a resume needs and watch() does not know, such as {"scheduler": scheduler}: objects with
    state_dict(). restore: read back the checkpoints that the program saves, in a separate low-priority process; if
    several are pending, only the newest. The result is a `checkpoint.verified` event. Off by default.

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
                raise ValueError(f"parts[{name!r}] is a {type(part).__name__}; use an object with state_dict()")
        self.every_steps, self.every_minutes, self.keep = every_steps, every_minutes, keep
        self.dir = None if dir is None else Path(dir).expanduser().absolute()
        self.parts = dict(parts or {})
        self.restore = restore
        self._restore_process: RestoreProcess | None = None
        self._runner: GuardRunner | None = None
        self._written: list[tuple[Path, int]] = []

    def latest(self) -> Path | str | None:
        """Returns the newest checkpoint of this guard, else the program's newest complete one.

        A checkpoint of the program in a store is a str, its address. None if there is neither.
        """
        if self._written:
            return self._written[-1][0]
        saved = [checkpoint for checkpoint in self._runner.saved if not checkpoint.missing] if self._runner else []
        newest = saved[-1].path if saved else ""
        return newest if "://" in newest else Path(newest) if newest else None

    def attach(self, runner: GuardRunner) -> None:
        self._runner = runner
        self._written = []
        self._step, self._time = runner.session.row.step, monotonic()
        self._reported: set[tuple[str, ...]] = set()
        self._random_states: dict[str, Any] | None = None
        self._reported_obstacle = ""
        self._folder = self.dir or runner.session.journal.folder.parent / "checkpoints"
        self._writes = runner.session.hello.rank == 0 and bool(self.every_steps or self.every_minutes)
        self._restore_process = RestoreProcess(self._after_restore) if self.restore else None

    def receive_frames(self, frames: Sequence[Frame], last: bool = False) -> None:
        """Reports missing state of the program's checkpoints, once per combination.

        Nothing is reported if the program has written a complete checkpoint, because the others count as exports.
        """
        if self._restore_process is not None:
            self._read_back(self._restore_process, frames, last)
        if any(not checkpoint.missing and not checkpoint.by_guard for checkpoint in self._attached_runner().saved):
            return
        for frame in frames:
            if isinstance(frame, Event) and frame.name == "checkpoint.saved" and frame.data.get("missing"):
                missing = tuple(map(str, frame.data["missing"]))
                if missing not in self._reported:
                    self._reported.add(missing)
                    path = frame.data.get("path") or "in memory"
                    self._emit("found incomplete", f"{path} lacks {', '.join(missing)}", None, self._path())

    def _read_back(self, process: RestoreProcess, frames: Sequence[Frame], last: bool) -> None:
        if last:
            process.poll()
            process.stop()
            return
        for frame in frames:
            if isinstance(frame, Event) and frame.name == "checkpoint.saved" and self._reads(frame.data.get("path")):
                began = frame.time / 1e9 - float(frame.data.get("seconds") or 0.0)
                process.read({**frame.data, "step": frame.step}, began, self._trained())

    def _reads(self, path: Any) -> bool:
        """Whether another process can read the path, and this rank is the one to start it.

        Every rank reads its files; the first one reads folders, which all ranks write, and what lies in a store.
        """
        if not isinstance(path, str) or not path or path.startswith(_OF_THIS_PROCESS):
            return False
        is_shared = "://" in path or Path(path).is_dir()
        return self._attached_runner().session.hello.rank == 0 if is_shared else Path(path).is_file()

    def _trained(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the tensors that optimizers step, without sharded ones: the file has their whole shape."""
        watched = self._attached_runner().session.watched
        indices = {index for optimizer in watched.optimizers for index in watched.parameters(optimizer)[1]}
        tensors = [watched.tensors[index] for index in sorted(indices)]
        return {tensor.name: tensor.shape for tensor in tensors if not tensor.copies}

    def _after_restore(self, saved: dict[str, Any], read: dict[str, Any]) -> None:
        """Records the verification at once, as every action of a guard."""
        runner, result = self._attached_runner(), compare(read, saved)
        names = ("outcome", "reason", "seconds", "bytes", "tensors")
        data = {"path": saved["path"], "saved_step": saved["step"], **{name: result.get(name) for name in names}}
        runner.session.journal.append(Event("checkpoint.verified", max(0, runner.step), time_ns(), data))
        runner.verified(saved["path"], saved["step"], result["outcome"])

    def remove(self) -> None:
        """Ends the child process: the run must leave none behind."""
        if self._restore_process is not None:
            self._restore_process.stop()

    def step_closed(self) -> None:
        """Captures the random number states now, because the next batch may be drawn from them.

        The checkpoint itself is written when the next forward pass begins, after the schedule has advanced; without a
        recorded forward pass, one step later.
        """
        if self._restore_process is not None:
            self._restore_process.poll()
        if not self._writes:
            return
        self.before_forward()
        completed = self._completed_steps()
        due = self.every_steps is not None and completed - self._step >= self.every_steps
        if due or (self.every_minutes is not None and monotonic() - self._time >= 60 * self.every_minutes):
            self._random_states = _random_states()

    def before_forward(self) -> None:
        if self._random_states is not None:
            self._step = self._completed_steps()
            self._write(self._random_states)
            self._random_states, self._time = None, monotonic()

    def _write(self, random_states: dict[str, Any]) -> None:
        obstacle = self._obstacle()
        if obstacle:
            if obstacle != self._reported_obstacle:
                self._emit("did not write", obstacle, None, self._path())
            self._reported_obstacle = obstacle
            return
        began, completed = perf_counter(), self._completed_steps()
        path = self._folder / f"step-{completed:08d}.pt"
        try:
            size = write(path, {**self._state(), "random": random_states, "step": completed})
        except (OSError, Unreadable) as error:
            self._emit("could not write", f"{type(error).__name__}: {error}", None, self._path())
            return
        self._delete_oldest(path, completed)
        reason = f"{size} bytes in {perf_counter() - began:.3f} s, read back"
        self._emit("wrote", reason, None, str(path))

    def _delete_oldest(self, path: Path, step: int) -> None:
        """Deletes this guard's oldest files. Other runs may use the same folder."""
        runner = self._attached_runner()
        self._written = [entry for entry in self._written if entry[0] != path] + [(path, step)]
        while len(self._written) > self.keep:
            self._written.pop(0)[0].unlink(missing_ok=True)
        written = [SavedCheckpoint(str(own), at, (), by_guard=True) for own, at in self._written]
        runner.saved = [saved for saved in runner.saved if not saved.by_guard] + written

    def _obstacle(self) -> str:
        """Returns why no checkpoint is written, or '' if one is."""
        watched = self._attached_runner().session.watched
        if any(tensor.copies for tensor in watched.tensors):
            return "the model is sharded, so each rank has only a part of its state"
        weights = [(watched.tensors[index].name, tensor) for index, tensor in watched.alive()]
        for optimizer in watched.optimizers:
            states = [state for state in optimizer.state.values() if isinstance(state, dict)]
            weights += [(f"the optimizer's {name}", tensor) for state in states for name, tensor in state.items()]
        bad = unseen(lambda: [name for name, tensor in weights if not _is_finite(tensor)], ())
        return f"{len(bad)} tensors are not finite, {bad[0]} first" if bad else ""

    def _state(self) -> dict[str, Any]:
        session = self._attached_runner().session
        watched = session.watched
        models = [model for ref in watched.models if (model := ref()) is not None]
        return {
            "models": [model.state_dict() for model in models],
            "optimizers": [optimizer.state_dict() for optimizer in watched.optimizers],
            "scalers": [scaler.state_dict() for scaler in watched.scalers],
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "run": session.hello.run,
        }

    def _emit(self, action: str, reason: str, before: str | None, after: str | None) -> None:
        self._attached_runner().emit(self, action, reason, **{"from": before, "to": after})

    def _path(self) -> str | None:
        latest = self.latest()
        return None if latest is None else str(latest)

    def _completed_steps(self) -> int:
        """Number of completed steps."""
        return self._attached_runner().session.row.step

    def _attached_runner(self) -> GuardRunner:
        assert self._runner is not None
        return self._runner


def _random_states() -> dict[str, Any]:
    """Returns the state of all random number generators that training may use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def _is_finite(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.detach()).all())


_OF_THIS_PROCESS = "memory:"
"""fsspec's storage in the memory of this process, which no other process can read."""
