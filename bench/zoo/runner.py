"""One case of the zoo: trained, watched by Ammeter, and once more with other eyes; then what each of them said."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import CodeType
from typing import Any, cast

import msgspec
import torch

import ammeter
from ammeter import journal
from ammeter.journal.find import find_runs
from ammeter.recording import budget
from ammeter.report import diagnosis
from ammeter.wire.columns import measured, view
from ammeter.wire.frames import SCALARS, Event, Hello, Schema, Steps
from bench.zoo import detectors as zoo_eyes
from bench.zoo import healthy
from bench.zoo.detectors import Others, Said
from bench.zoo.plan import FIRST_LIFE, Case
from bench.zoo.processes import TRAINING_SECONDS, Ended, train, trained
from bench.zoo.trainer import REGISTRY, broken, data

READINGS = (budget.EVERY, budget.EVERY, budget.EVERY, 0.04)
"""Shares of step time for norms, full statistics, weights and the census of kernels: the default budget of 1 % has them
read so often where steps take a second. And what is read does not depend on what else the machine does."""

NEVER_ENDS = "run-stalled"
SILENT_SECONDS = 2.0
"""Without a new row, when it counts as standing still: hundreds of its steps."""

MINUTES_LATER = 20 * 60 * 10**9
"""When it is judged once more, in nanoseconds: beyond the quarter of an hour that its verdict waits."""


class Culprit(msgspec.Struct, frozen=True):
    """What is broken. names: of its modules or tensors. code: file, first and last line of what breaks them."""

    names: list[str] = []
    code: list[tuple[str, int, int]] = []


class Row(msgspec.Struct, frozen=True):
    """A step in the journal: its time in ns, whether it was skipped, which sampled columns it has."""

    step: int
    time: int
    skipped: bool
    columns: list[str]


class Result(msgspec.Struct, frozen=True):
    """What became of a case. code: how the watched training ended; trouble: what else went wrong.

    rows, events: of its journal. others: what other eyes said; anomaly: and anomaly mode, None where it did not look.
    """

    case: Case
    code: int | None
    findings: list[dict[str, Any]]
    rows: list[Row] = []
    events: list[tuple[str, int]] = []
    culprit: Culprit = Culprit()
    others: list[Said] = []
    anomaly: list[Said] | None = None
    seconds: float = 0.0
    trouble: str = ""


ENDS = {"run-lost": -9, "unsupported-op": 1, NEVER_ENDS: None}
"""How the process ends where it does not by itself."""

_watch, _load = ammeter.watch, data.load

COUNTED = {fault.expected.counted for fault in REGISTRY.values()} & set(SCALARS)


@functools.cache
def texts() -> Any:
    """The trainer's data: read once, before the first child."""
    return _load()


def run(case: Case, folder: Path, *, anomaly: bool) -> Result:
    """All trainings of a case, one after the other. anomaly: whether torch's anomaly mode has a look, too."""
    began = time.monotonic()
    watched = Watched(case, folder / "watched")
    ended, findings = stalled(watched) if case.what == NEVER_ENDS else (watched.train(), watched.findings())
    patience = TRAINING_SECONDS if ended.code is not None else 2 * ended.seconds + SILENT_SECONDS
    slow = in_anomaly_mode(case, folder / "anomaly", patience) if anomaly and case.is_first_onset else None
    others, (rows, events) = zoo_eyes.said(watched.said), watched.journal()
    trouble = trouble_of(case, ended)
    took = time.monotonic() - began
    return Result(case, ended.code, findings, rows, events, watched.culprit(), others, slow, took, trouble)


class Watched:
    """The training that Ammeter watches, with other eyes in it, and what it leaves in a folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.models: list[Any] = []
        self.work = prepared(case, folder)
        self.said = folder / "said.json"
        self.baseline: str | None = None

    def train(self) -> Ended:
        if words := self.case.baseline:
            self.compared_with(words)
        return train(self._do, self.folder, ranks=self.case.ranks)

    def compared_with(self, words: list[str]) -> None:
        """Trains the run that this one is held against."""
        folder = self.folder / "baseline"
        ended = train(lambda: run_trainer(words, ammeter), folder)
        if ended.code:
            raise RuntimeError(f"the baseline of {self.case} ended with {ended.code}: {ended.said}")
        self.baseline = str(find_runs(folder / "journal")[0])

    def started(self) -> Any:
        return trained(self._do, self.folder)

    def watch(self, model: Any, *parts: Any, **options: Any) -> Both:
        """As `ammeter.watch`, which the program thinks it calls."""
        self.models = list(model) if isinstance(model, list | tuple) else [model]
        return Both(_watch(model, *parts, **options), self.others)

    def findings(self) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = diagnosis.diagnose(self._run(), self.baseline).as_json()["findings"]
        return told

    def journal(self) -> tuple[list[Row], list[tuple[str, int]]]:
        """Of the first rank."""
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
            budget.PRESETS["default"] = lambda _: READINGS
        self.others = Others(of_first_rank(self.said))
        try:
            self.others.runs(lambda: self.work(self))
        finally:
            if self.case.fault and self.models:
                found = msgspec.json.encode(culprit_of(self.case, self.models[0]))
                of_first_rank(self.folder / "culprit").write_bytes(found)


class Both:
    """The run that Ammeter hands out; other eyes hear what it is told."""

    def __init__(self, run: ammeter.Run, others: Others) -> None:
        self._run, self._others = run, others

    def log(self, **values: Any) -> None:
        self._run.log(**values)
        self._others.log(**values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def prepared(case: Case, folder: Path) -> Callable[[Any], object]:
    """The program of a case, as a function of the eyes that watch it. A first life is over when it is handed out."""
    if case.what in healthy.PROGRAMS:
        return lambda eyes: healthy.PROGRAMS[case.what].run(eyes.watch, case.precision, case.seed, folder)
    words, kept = case.words, folder / "kept" / "run.pt"
    if case.life:
        words += ["--checkpoint", str(kept), "--checkpoint-every", "20"]
    if case.life == "resumed":
        first = [*case.twin.words, *words[words.index("--checkpoint") :], "--steps", str(FIRST_LIFE)]
        ended = train(lambda: run_trainer(first, ammeter), folder / "first", AMMETER_DISABLE="1")
        if ended.code:
            raise RuntimeError(f"the first life of {case} ended with {ended.code}: {ended.said}")
        words += ["--resume"]
    return lambda eyes: run_trainer(words, eyes)


def run_trainer(words: list[str], eyes: Any) -> None:
    """trainer/broken.py with these words, watched by these eyes instead."""
    data.load = texts
    ammeter.watch = eyes.watch
    torch.set_num_threads(1)
    broken.main(words)


def in_anomaly_mode(case: Case, folder: Path, seconds: float) -> list[Said]:
    """What torch's anomaly mode says of the same training, which nobody else watches."""
    work, path = prepared(case, folder), folder / "said.json"

    def look() -> None:
        eyes = Others(of_first_rank(path), anomaly=True)
        eyes.runs(lambda: work(eyes))

    train(look, folder, seconds, case.ranks, AMMETER_DISABLE="1")
    return zoo_eyes.said(path)


def of_first_rank(path: Path) -> Path:
    return path if os.environ.get("RANK", "0") == "0" else Path(os.devnull)


def stalled(watched: Watched) -> tuple[Ended, list[dict[str, Any]]]:
    """A run that stands still: what is found at once, and else after a while, by a clock that is put forward."""
    began = time.monotonic()
    with watched.started() as (process,):
        wait_for_silence(watched, process)
        found, now = watched.findings(), time.time_ns
        try:
            vars(time)["time_ns"] = lambda: now() + MINUTES_LATER
            found = found or watched.findings()
        finally:
            vars(time)["time_ns"] = now
        return Ended(None, "", time.monotonic() - began), found


def wait_for_silence(watched: Watched, process: ForkProcess) -> None:
    """Until no row has come for a while."""
    rows, since, end = -1, time.monotonic(), time.monotonic() + TRAINING_SECONDS
    while process.is_alive() and time.monotonic() < end:
        here = len(watched.journal()[0]) if any(watched.folder.glob("journal/*/*/alive")) else -1
        if here != rows:
            rows, since = here, time.monotonic()
        elif rows > 0 and time.monotonic() - since > SILENT_SECONDS:
            return
        time.sleep(0.1)


def rank_of(stream: Path) -> int:
    return next((entry.frame.rank for entry in journal.read(stream) if isinstance(entry.frame, Hello)), 0)


def row_of(frame: Steps, schema: Schema) -> Row:
    one = view(schema, [frame])
    there = [name for name in sorted(COUNTED) if measured(one.scalar(name)).any()]
    return Row(frame.step, frame.time, bool((one.scalar("skipped") > 0).any()), there)


def culprit_of(case: Case, model: Any) -> Culprit:
    """What the fault's registry says is broken, in this model."""
    expected = REGISTRY[case.what].expected
    parts = expected.names(model) if expected.names else ()
    named = [*model.named_modules(), *model.named_parameters()]
    code = [lines_of(type(part).forward) for part in parts if isinstance(part, torch.nn.Module)]
    code += [lines_of(place_of(expected.line_in))] if expected.line_in else []
    return Culprit([name for name, each in named if any(each is part for part in parts)], code)


def place_of(place: str) -> Callable[..., Any]:
    """The function that "module:Class.function" means, in a module of the trainer."""
    module, _, path = place.partition(":")
    found: Any = sys.modules[module]
    for name in path.split("."):
        found = getattr(found, name)
    return cast(Callable[..., Any], found)


def lines_of(function: Callable[..., Any]) -> tuple[str, int, int]:
    """File, first and last line of a function with all that stands in it."""
    code = function.__code__
    parts = [code]
    for part in parts:
        parts += [each for each in part.co_consts if isinstance(each, CodeType)]
    lines = [line for part in parts for _, _, line in part.co_lines() if line]
    return Path(code.co_filename).name, min(lines), max(lines)


def trouble_of(case: Case, ended: Ended) -> str:
    """What went wrong with the training itself, other than what its fault does."""
    if ended.code == ENDS.get(case.what, 0):
        return ""
    return f"ended with {ended.code}: {ended.said.strip().splitlines()[-1:]}"


def clean(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
