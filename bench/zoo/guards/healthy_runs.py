"""Checks that guards leave healthy runs unchanged: all guards at once, beside the same run without guards.

Both runs train at the same time with the default budget. The bits of every loss and of the final weights have to be
equal, and guards may only write checkpoints.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import ammeter
from ammeter import journal
from ammeter.wire.frames import Event
from bench.zoo.plan import Case, Plan
from bench.zoo.processes import TRAINING_SECONDS, output_of, trained
from bench.zoo.runner import load_texts, program_of

GUARDED, UNGUARDED = "guarded", "alone"

CHECKPOINT_STEPS = 25
WROTE = "wrote"
"""The checkpoint guard's regular action."""

_watch = ammeter.watch


@dataclass(frozen=True)
class GuardedTwin:
    """A healthy run with and without guards. same: equal to the last bit. did: actions other than checkpoints."""

    case: Case
    same: bool
    did: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def left_alone(self) -> bool:
        return self.same and not self.did and not self.trouble

    def __str__(self) -> str:
        words = [*self.did, *(["another run"] if not self.same else []), *filter(None, [self.trouble])]
        return f"{self.case}: {'; '.join(words) or 'left alone'}"


class Recorder:
    """Replaces ammeter.watch(), adds these guards, and hashes the values that have to be equal."""

    def __init__(self, path: Path, guards: Callable[[], list[Any]]) -> None:
        self._path, self._guards = path, guards
        self._bits = hashlib.sha256()
        self._models: list[Any] = []
        self._run: Any = None

    def watch(self, model: Any, *parts: Any, **options: Any) -> Recorder:
        self._models = list(model) if isinstance(model, list | tuple) else [model]
        self._run = _watch(model, *parts, **{**options, "guards": self._guards()})
        return self

    def log(self, **values: Any) -> None:
        self._run.log(**values)
        for name in sorted(values.keys() & {"loss", "val_loss"}):
            self._bits.update(struct.pack("d", float(values[name])))

    def write_hash(self) -> None:
        """Adds the final weights and writes the hash."""
        for model in self._models:
            for name, tensor in sorted(model.state_dict().items()):
                self._bits.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
        self._path.write_text(self._bits.hexdigest())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def all_guards() -> list[Any]:
    guards = ammeter.guards
    written = guards.Checkpoint(every_steps=CHECKPOINT_STEPS)
    return [guards.Scale(), guards.Precision(), written, guards.Stop(), guards.OnIncident(lambda _: None)]


def compare_all(seeds: Sequence[int], only: Sequence[str] = ("",)) -> list[GuardedTwin]:
    """Compares every healthy run of the zoo with these seeds."""
    cases = [case for case in Plan(seeds, only=only, frugal=False).cases() if not case.fault]
    load_texts()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        return [compare(case, Path(folder) / str(number)) for number, case in enumerate(cases)]


def compare(case: Case, folder: Path) -> GuardedTwin:
    """Compares one case."""
    with trained(recorded(case, folder / UNGUARDED, list), folder / UNGUARDED) as (alone,):
        with trained(recorded(case, folder / GUARDED, all_guards), folder / GUARDED) as (guarded,):
            wait_for(alone, guarded)
        codes = alone.exitcode, guarded.exitcode
    if codes != (0, 0):
        last = output_of(folder / (GUARDED if codes[1] != 0 else UNGUARDED)).strip().splitlines()[-1:]
        return GuardedTwin(case, same=False, trouble=f"ended with {codes[0]}, and {codes[1]} with guards: {last}")
    bits = [(folder / name / "bits").read_text() for name in (GUARDED, UNGUARDED)]
    did = [
        f"{event.data['guard']} {event.data['action']} at {event.data['step']}"
        for event in guard_events(folder / GUARDED / "journal")
    ]
    return GuardedTwin(case, bits[0] == bits[1], tuple(action for action in did if f" {WROTE} " not in action))


def recorded(case: Case, folder: Path, guards: Callable[[], list[Any]]) -> Callable[[], None]:
    """The function of a process: runs a case and records it in a folder."""
    program = program_of(case, folder)

    def work() -> None:
        recorder = Recorder(folder / "bits", guards)
        program(recorder)
        recorder.write_hash()

    return work


def wait_for(*processes: ForkProcess) -> None:
    end = time.monotonic() + TRAINING_SECONDS
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))


def guard_events(folder: Path) -> list[Event]:
    """The guards' events in the journals of a folder."""
    streams = [stream for path in folder.iterdir() for stream in journal.streams(path)]
    frames = [entry.frame for stream in streams for entry in journal.read(stream)]
    return [frame for frame in frames if isinstance(frame, Event) and frame.name == "guard.acted"]


def table(runs: Sequence[GuardedTwin]) -> list[tuple[str, ...]]:
    """One row for each program."""
    rows: list[tuple[str, ...]] = [("program", "runs", "left alone, to the last bit", "what guards did")]
    for name, group in groupby(sorted(runs, key=_kind), _kind):
        members = list(group)
        did = dict.fromkeys(what for run in members for what in _actions(run))
        rows.append((name, str(len(members)), str(sum(run.left_alone for run in members)), ", ".join(did) or "nothing"))
    return rows


def _actions(run: GuardedTwin) -> list[str]:
    """The actions without their steps."""
    return [*(action.partition(" at ")[0] for action in run.did), *filter(None, [run.trouble])]


def _kind(run: GuardedTwin) -> str:
    life = f", {run.case.life}" if run.case.life else ""
    return run.case.what or f"the trainer, {run.case.arch}{life}"
