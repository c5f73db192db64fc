"""Runs one case: a training watched by Ammeter and the detectors, and once more in anomaly mode."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import msgspec
import torch

import ammeter
from ammeter import journal
from ammeter.journal.find import find_runs
from ammeter.recording.schedule import budget
from ammeter.recording.schedule.bucket import UNLIMITED_SHARE
from ammeter.report import diagnosis
from ammeter.wire.columns import measured, view
from ammeter.wire.frames import SCALARS, Event, Hello, Schema, Steps
from bench.zoo import detectors, healthy
from bench.zoo.culprit import Culprit, culprit_of
from bench.zoo.detectors import Alarm, DetectorSet
from bench.zoo.plan import FIRST_LIFE, Case
from bench.zoo.processes import TRAINING_SECONDS, Exit, train, trained
from bench.zoo.trainer import REGISTRY, broken, data

READING_SHARES = (UNLIMITED_SHARE, UNLIMITED_SHARE, UNLIMITED_SHARE, 0.04)
"""Shares of step time for norms, full statistics, weights and the census of kernels: the default budget of 1 % has them
read so often where steps take a second. And what is read does not depend on what else the machine does."""

NEVER_ENDS = "run-stalled"
SILENT_SECONDS = 2.0
"""Time without a new row after which a run counts as stalled: hundreds of its steps."""

CLOCK_ADVANCE_NS = 20 * 60 * 10**9
"""How far the clock is advanced for a stalled run: beyond the quarter of an hour that the verdict waits."""


class Row(msgspec.Struct, frozen=True):
    """A step in the journal. time: in ns. columns: the sampled columns that it has."""

    step: int
    time: int
    skipped: bool
    columns: list[str]


class Result(msgspec.Struct, frozen=True):
    """The outcome of a case.

    Attributes:
        code: Exit code of the watched training.
        rows, events: Contents of its journal.
        others: Alarms of the detectors.
        anomaly: Alarms of anomaly mode; None where it did not run.
        trouble: An unexpected end or another error.
    """

    case: Case
    code: int | None
    findings: list[dict[str, Any]]
    rows: list[Row] = []
    events: list[tuple[str, int]] = []
    culprit: Culprit = Culprit()
    others: list[Alarm] = []
    anomaly: list[Alarm] | None = None
    seconds: float = 0.0
    trouble: str = ""


EXPECTED_EXIT_CODES = {"run-lost": -9, "unsupported-op": 1, NEVER_ENDS: None}
"""Exit codes of faults that end the process or keep it from ending."""

_watch, _load = ammeter.watch, data.load

COUNTED = {fault.expected.counted for fault in REGISTRY.values()} & set(SCALARS)


@functools.cache
def load_texts() -> Any:
    """The trainer's data, loaded once, before the first child process."""
    return _load()


def run(case: Case, folder: Path, *, anomaly: bool) -> Result:
    """Runs all trainings of a case in turn. anomaly: once more in torch's anomaly mode."""
    began = time.monotonic()
    watched = WatchedTraining(case, folder / "watched")
    ended, findings = run_stalled(watched) if case.what == NEVER_ENDS else (watched.train(), watched.findings())
    patience = TRAINING_SECONDS if ended.code is not None else 2 * ended.seconds + SILENT_SECONDS
    slow = in_anomaly_mode(case, folder / "anomaly", patience) if anomaly and case.is_first_onset else None
    others, (rows, events) = detectors.read_alarms(watched.alarms), watched.journal()
    trouble = unexpected_end(case, ended)
    took = time.monotonic() - began
    return Result(case, ended.code, findings, rows, events, watched.culprit(), others, slow, took, trouble)


class WatchedTraining:
    """The training that Ammeter and the detectors watch, and its files."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.models: list[Any] = []
        self.work = program_of(case, folder)
        self.alarms = folder / "said.json"
        self.baseline: str | None = None

    def train(self) -> Exit:
        if arguments := self.case.baseline:
            self.compared_with(arguments)
        return train(self._do, self.folder, ranks=self.case.ranks)

    def compared_with(self, arguments: list[str]) -> None:
        """Trains the baseline of this run."""
        folder = self.folder / "baseline"
        ended = train(lambda: run_trainer(arguments, ammeter), folder)
        if ended.code:
            raise RuntimeError(f"the baseline of {self.case} ended with {ended.code}: {ended.output}")
        self.baseline = str(find_runs(folder / "journal")[0])

    def started(self) -> Any:
        return trained(self._do, self.folder)

    def watch(self, model: Any, *parts: Any, **options: Any) -> RunWithDetectors:
        """Replaces `ammeter.watch` in the program."""
        self.models = list(model) if isinstance(model, list | tuple) else [model]
        return RunWithDetectors(_watch(model, *parts, **options), self.others)

    def findings(self) -> list[dict[str, Any]]:
        findings: list[dict[str, Any]] = diagnosis.diagnose(self._run(), self.baseline).as_json()["findings"]
        return findings

    def journal(self) -> tuple[list[Row], list[tuple[str, int]]]:
        """Rows and events of the first rank."""
        schema, rows, events = Schema(), [], []
        for entry in journal.read(min(journal.streams(self._run()), key=rank_of)):
            if isinstance(entry.frame, Hello):
                schema = entry.frame.schema
            elif isinstance(entry.frame, Steps):
                rows.append(row_of(entry.frame, schema))
            elif isinstance(entry.frame, Event):
                events.append((entry.frame.name, entry.frame.step))
        return rows, events

    def culprit(self) -> Culprit:
        path = self.folder / "culprit"
        return msgspec.json.decode(path.read_bytes(), type=Culprit) if path.exists() else Culprit()

    def _run(self) -> Path:
        return find_runs(self.folder / "journal")[0]

    def _do(self) -> None:
        if not self.case.frugal:
            budget.PRESETS["default"] = lambda _: READING_SHARES
        self.others = DetectorSet(first_rank_only(self.alarms))
        try:
            self.others.runs(lambda: self.work(self))
        finally:
            if self.case.fault and self.models:
                found = msgspec.json.encode(culprit_of(self.case, self.models[0]))
                first_rank_only(self.folder / "culprit").write_bytes(found)


class RunWithDetectors:
    """A run of Ammeter whose logged values the detectors receive as well."""

    def __init__(self, run: ammeter.Run, others: DetectorSet) -> None:
        self._run, self._others = run, others

    def log(self, **values: Any) -> None:
        self._run.log(**values)
        self._others.log(**values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def program_of(case: Case, folder: Path) -> Callable[[Any], object]:
    """Returns the program of a case as a function of its watcher.

    The first life of a resumed run is trained before this function returns.
    """
    if case.what in healthy.PROGRAMS:
        return lambda watcher: healthy.PROGRAMS[case.what].run(watcher.watch, case.precision, case.seed, folder)
    arguments, kept = case.arguments, folder / "kept" / "run.pt"
    if case.life:
        arguments += ["--checkpoint", str(kept), "--checkpoint-every", "20"]
    if case.life == "resumed":
        first = [*case.twin.arguments, *arguments[arguments.index("--checkpoint") :], "--steps", str(FIRST_LIFE)]
        ended = train(lambda: run_trainer(first, ammeter), folder / "first", AMMETER_DISABLE="1")
        if ended.code:
            raise RuntimeError(f"the first life of {case} ended with {ended.code}: {ended.output}")
        arguments += ["--resume"]
    return lambda watcher: run_trainer(arguments, watcher)


def run_trainer(arguments: list[str], watcher: Any) -> None:
    """Runs trainer/broken.py with these arguments and this watcher."""
    data.load = load_texts
    ammeter.watch = watcher.watch
    torch.set_num_threads(1)
    broken.main(arguments)


def in_anomaly_mode(case: Case, folder: Path, seconds: float) -> list[Alarm]:
    """Alarms of torch's anomaly mode in the same training without detectors."""
    work, path = program_of(case, folder), folder / "said.json"

    def observe() -> None:
        watcher = DetectorSet(first_rank_only(path), anomaly=True)
        watcher.runs(lambda: work(watcher))

    train(observe, folder, seconds, case.ranks, AMMETER_DISABLE="1")
    return detectors.read_alarms(path)


def first_rank_only(path: Path) -> Path:
    return path if os.environ.get("RANK", "0") == "0" else Path(os.devnull)


def run_stalled(watched: WatchedTraining) -> tuple[Exit, list[dict[str, Any]]]:
    """Findings of a stalled run: at once, or else with the clock advanced."""
    began = time.monotonic()
    with watched.started() as (process,):
        wait_for_silence(watched, process)
        found = watched.findings()
        with advanced_clock(CLOCK_ADVANCE_NS):
            found = found or watched.findings()
        return Exit(None, "", time.monotonic() - began), found


@contextmanager
def advanced_clock(nanoseconds: int) -> Iterator[None]:
    """Advances time.time_ns() in this process."""
    now = time.time_ns
    vars(time)["time_ns"] = lambda: now() + nanoseconds
    try:
        yield
    finally:
        vars(time)["time_ns"] = now


def wait_for_silence(watched: WatchedTraining, process: ForkProcess) -> None:
    """Waits until the journal has stopped growing."""
    rows, since, end = -1, time.monotonic(), time.monotonic() + TRAINING_SECONDS
    while process.is_alive() and time.monotonic() < end:
        written = len(watched.journal()[0]) if any(watched.folder.glob("journal/*/*/alive")) else -1
        if written != rows:
            rows, since = written, time.monotonic()
        elif rows > 0 and time.monotonic() - since > SILENT_SECONDS:
            return
        time.sleep(0.1)


def rank_of(stream: Path) -> int:
    return next((entry.frame.rank for entry in journal.read(stream) if isinstance(entry.frame, Hello)), 0)


def row_of(frame: Steps, schema: Schema) -> Row:
    row = view(schema, [frame])
    present = [name for name in sorted(COUNTED) if measured(row.scalar(name)).any()]
    return Row(frame.step, frame.time, bool((row.scalar("skipped") > 0).any()), present)


def unexpected_end(case: Case, ended: Exit) -> str:
    """An end of the training other than its fault causes, or ""."""
    if ended.code == EXPECTED_EXIT_CODES.get(case.what, 0):
        return ""
    return f"ended with {ended.code}: {ended.output.strip().splitlines()[-1:]}"


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
