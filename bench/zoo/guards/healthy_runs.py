"""Guards in runs that need none: all of them at once in every healthy run of the zoo, beside the same run without any.

Both are trained side by side and watched at the default budget. What is compared are the bits of every loss and of the
weights at the end; and no guard may have done anything but write its checkpoints.
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
from bench.zoo.processes import TRAINING_SECONDS, said_in, trained
from bench.zoo.runner import prepared, texts

WITH, WITHOUT = "guarded", "alone"

CHECKPOINT_STEPS = 25
WROTE = "wrote"
"""What the checkpoint guard does in peace."""

_watch = ammeter.watch


@dataclass(frozen=True)
class Idle:
    """A healthy run beside itself with guards. same: to the last bit. did: what guards told, but for checkpoints."""

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


class Noting:
    """Eyes that watch as Ammeter does, with these guards, and note what has to be the same."""

    def __init__(self, path: Path, guards: Callable[[], list[Any]]) -> None:
        self._path, self._guards = path, guards
        self._bits = hashlib.sha256()
        self._models: list[Any] = []
        self._run: Any = None

    def watch(self, model: Any, *parts: Any, **options: Any) -> Noting:
        self._models = list(model) if isinstance(model, list | tuple) else [model]
        self._run = _watch(model, *parts, **{**options, "guards": self._guards()})
        return self

    def log(self, **values: Any) -> None:
        self._run.log(**values)
        for name in sorted(values.keys() & {"loss", "val_loss"}):
            self._bits.update(struct.pack("d", float(values[name])))

    def note(self) -> None:
        """Once it is over."""
        for model in self._models:
            for name, each in sorted(model.state_dict().items()):
                self._bits.update(name.encode() + each.detach().contiguous().numpy().tobytes())
        self._path.write_text(self._bits.hexdigest())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def all_guards() -> list[Any]:
    guards = ammeter.guards
    written = guards.Checkpoint(every_steps=CHECKPOINT_STEPS)
    return [guards.Scale(), guards.Precision(), written, guards.Stop(), guards.OnIncident(lambda _: None)]


def tried(seeds: Sequence[int], only: Sequence[str] = ("",)) -> list[Idle]:
    """Every healthy run of the zoo with these seeds."""
    cases = [each for each in Plan(seeds, only=only, frugal=False).cases() if not each.fault]
    texts()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        return [idle(case, Path(folder) / str(number)) for number, case in enumerate(cases)]


def idle(case: Case, folder: Path) -> Idle:
    """One of them."""
    with trained(noted(case, folder / WITHOUT, list), folder / WITHOUT) as (alone,):
        with trained(noted(case, folder / WITH, all_guards), folder / WITH) as (guarded,):
            wait_for(alone, guarded)
        codes = alone.exitcode, guarded.exitcode
    if codes != (0, 0):
        last = said_in(folder / (WITH if codes[1] != 0 else WITHOUT)).strip().splitlines()[-1:]
        return Idle(case, same=False, trouble=f"ended with {codes[0]}, and {codes[1]} with guards: {last}")
    bits = [(folder / name / "bits").read_text() for name in (WITH, WITHOUT)]
    did = [
        f"{each.data['guard']} {each.data['action']} at {each.data['step']}" for each in told(folder / WITH / "journal")
    ]
    return Idle(case, bits[0] == bits[1], tuple(each for each in did if f" {WROTE} " not in each))


def noted(case: Case, folder: Path, guards: Callable[[], list[Any]]) -> Callable[[], None]:
    """The work of a process: the program of a case, noted in a folder."""
    program = prepared(case, folder)

    def work() -> None:
        eyes = Noting(folder / "bits", guards)
        program(eyes)
        eyes.note()

    return work


def wait_for(*processes: ForkProcess) -> None:
    end = time.monotonic() + TRAINING_SECONDS
    for each in processes:
        each.join(max(0.0, end - time.monotonic()))


def told(folder: Path) -> list[Event]:
    """What guards told in the journals of a folder."""
    streams = [each for path in folder.iterdir() for each in journal.streams(path)]
    frames = [entry.frame for each in streams for entry in journal.read(each)]
    return [frame for frame in frames if isinstance(frame, Event) and frame.name == "guard.acted"]


def table(runs: Sequence[Idle]) -> list[tuple[str, ...]]:
    """One row for each program."""
    rows: list[tuple[str, ...]] = [("program", "runs", "left alone, to the last bit", "what guards did")]
    for name, group in groupby(sorted(runs, key=_kind), _kind):
        each = list(group)
        did = dict.fromkeys(what for run in each for what in _shortly(run))
        rows.append((name, str(len(each)), str(sum(run.left_alone for run in each)), ", ".join(did) or "nothing"))
    return rows


def _shortly(run: Idle) -> list[str]:
    """What was done, without the steps."""
    return [*(each.partition(" at ")[0] for each in run.did), *filter(None, [run.trouble])]


def _kind(run: Idle) -> str:
    life = f", {run.case.life}" if run.case.life else ""
    return run.case.what or f"the trainer, {run.case.arch}{life}"
