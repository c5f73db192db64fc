"""Whether a step ever waits for the disk: while another process writes a checkpoint of several GB beside the journal.

    python -m bench.agent.disk_stall [--gigabytes 4] [--seconds 15] [--write]

First steps of one small GPT in alternating blocks: bare, watched with the journal on disk, watched with the open
segment on tmpfs; without load, then for as long as the checkpoint takes. Then a row every 2 ms into a journal of each
kind, for as long as another one takes: many more writes, for waits are rare. A call that the kernel put to sleep is
told from one that was only preempted by its count of voluntary context switches.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

import ammeter
from ammeter.journal import Journal
from ammeter.watching import setup
from ammeter.wire.frames import Steps
from bench.common.paths import RESULTS, ROOT
from bench.common.trainer import GPT, Shape

SHAPE = Shape(vocabulary=96, context=64, layers=4, heads=4, width=96)
BATCH = 4
KINDS = ("bare", "journal on disk", "open segment on tmpfs")
BLOCK = 20
"""Steps of one kind before the next has its turn."""

ROW_SECONDS = 0.002
ROW_BYTES = 3000

CHECKPOINT = """
import os, sys
path, left, sync = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sync"
block = os.urandom(2**20) * 16
count = 0
with open(path, "wb") as file:
    while left > 0:
        left -= file.write(block)
        count += 1
        if sync and count % 16 == 0:
            os.fsync(file.fileno())
    os.fsync(file.fileno())
os.unlink(path)
"""
"""Two at once: one is left to the kernel until its end, one is synced every 256 MiB, as writers of shards do."""


@dataclass
class Times:
    """Seconds of the steps of one kind, of each call of Journal.append in them, and of those calls that slept."""

    steps: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    asleep: list[float] = field(default_factory=list)


def main() -> int:
    options = _options()
    folder = options.folder.absolute()
    needed = int((options.gigabytes + 2) * 2**30)
    free = shutil.disk_usage(folder).free
    if free < needed:
        print(f"{folder} has {free / 2**30:.0f} GiB free; {needed / 2**30:.0f} are needed: choose another --folder")
        return 1
    console = Console()
    with tempfile.TemporaryDirectory(dir=folder, prefix="ammeter-stall-") as place, console.status("measuring ..."):
        quiet, loaded, alone = measure(Path(place), options.gigabytes, options.seconds)
    where = f"{platform.machine()}, {os.cpu_count()} cores, a checkpoint of {options.gigabytes:g} GB in two files"
    rows = [
        *_rows(quiet, "steps"),
        *_rows(loaded, "steps beside a checkpoint"),
        *_rows(alone, "rows beside a checkpoint"),
    ]
    table = Table(*HEADINGS, title=where)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if options.write:
        (RESULTS / "stall.md").write_text(markdown(rows, where, options.gigabytes))
    return 0


Measured = dict[str, Times]


def measure(place: Path, gigabytes: float, seconds: float) -> tuple[Measured, Measured, Measured]:
    """(steps without load, steps beside a checkpoint, rows alone beside a checkpoint)."""
    training = Training(place)
    try:
        training.block({kind: Times() for kind in KINDS})
        until = time.monotonic() + seconds
        quiet = training.run(lambda: time.monotonic() < until)
        with _checkpoint(place, gigabytes) as writes:
            loaded = training.run(writes)
    finally:
        training.close()
    with _checkpoint(place, gigabytes) as writes:
        return quiet, loaded, _rows_alone(place, writes)


@contextmanager
def _checkpoint(place: Path, gigabytes: float) -> Iterator[Callable[[], bool]]:
    """Yields what says whether the checkpoint is still being written."""
    words = [sys.executable, "-c", CHECKPOINT]
    size = str(int(gigabytes * 1e9 / 2))
    writers = [subprocess.Popen([*words, str(place / f"{how}.pt"), size, how]) for how in ("sync", "late")]
    try:
        yield lambda: any(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def _rows_alone(place: Path, goes_on: Callable[[], bool]) -> Measured:
    hot = setup.HOT_FOLDER / f"ammeter-stall-{os.getpid()}"
    journals = {
        KINDS[1]: Journal(place / "rows-on-disk"),
        KINDS[2]: Journal(place / "rows-on-tmpfs", hot=hot, hot_bytes=2**30, segment_bytes=2**29),
    }
    found = {kind: Times() for kind in journals}
    row = Steps(1, 1, bytes(ROW_BYTES))
    try:
        while goes_on():
            for kind, journal in journals.items():
                _timed(journal.append, row, found[kind])
            time.sleep(ROW_SECONDS)
    finally:
        for journal in journals.values():
            journal.close()
        shutil.rmtree(hot, ignore_errors=True)
    return found


def _timed(append: Callable[[Steps], bool], frame: Steps, times: Times) -> bool:
    began, slept = time.perf_counter(), _sleeps()
    try:
        return append(frame)
    finally:
        times.appends.append(time.perf_counter() - began)
        if _sleeps() > slept:
            times.asleep.append(times.appends[-1])


class Training:
    """One model that trains on, now bare, now under one of two watching sessions."""

    def __init__(self, place: Path) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self._model = GPT(SHAPE)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._data = torch.randint(SHAPE.vocabulary, (64, BATCH, SHAPE.context + 1))
        self._count = 0
        self._times = Times()
        self._runs = {}
        tmpfs = setup.HOT_FOLDER
        for kind, hot in zip(KINDS[1:], (place / "none", tmpfs), strict=True):
            setup.HOT_FOLDER = hot
            self._runs[kind] = run = ammeter.watch(self._model, self._optimizer, dir=place / kind.replace(" ", "-"))
            assert run._session is not None, "nothing to measure: AMMETER_DISABLE is set"
            self._time_appends(run._session.journal)
            run._session.unsubscribe()
        setup.HOT_FOLDER = tmpfs

    def run(self, goes_on: Callable[[], bool]) -> dict[str, Times]:
        found = {kind: Times() for kind in KINDS}
        while goes_on():
            self.block(found)
        return found

    def block(self, found: dict[str, Times]) -> None:
        """BLOCK steps of each kind; who begins changes."""
        for kind in KINDS[self._count % 3 :] + KINDS[: self._count % 3]:
            session = self._runs[kind]._session if kind in self._runs else None
            self._times = found[kind]
            if session:
                session.subscribe()
            for _ in range(BLOCK):
                began = time.perf_counter()
                self._step()
                found[kind].steps.append(time.perf_counter() - began)
            if session:
                session.unsubscribe()
        self._count += 1

    def close(self) -> None:
        for run in self._runs.values():
            assert run._session is not None
            run._session.subscribe()
            run.close()

    def _step(self) -> None:
        batch = self._data[self._count % len(self._data)]
        self._model(batch[:, :-1], batch[:, 1:]).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _time_appends(self, journal: Journal) -> None:
        append = journal.append

        def timed(frame: Steps) -> bool:
            return _timed(append, frame, self._times)

        journal.append = timed  # type: ignore[method-assign, assignment] # what is measured, in this process only


def _sleeps() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


HEADINGS = (
    *("what", "watching", "steps", "median ms", "p99 ms", "slowest ms"),
    *("appends", "p99 ms", "slowest ms", "slept", "slept ms in all", "longest sleep ms"),
)


def _rows(found: Measured, what: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind, times in found.items():
        steps, appends, asleep = (1000 * np.array(each) for each in (times.steps, times.appends, times.asleep))
        told, ours = [""] * 4, [""] * 6
        if steps.size:
            told = [f"{steps.size}", *(f"{each:.1f}" for each in (np.median(steps), *_tail(steps)))]
        if kind != "bare" and appends.size:
            ours = [f"{appends.size}", *(f"{each:.2f}" for each in _tail(appends))]
            ours += [f"{asleep.size}", f"{asleep.sum():.1f}", f"{asleep.max(initial=0):.1f}"]
        rows.append((what, kind, *told, *ours))
    return rows


def _tail(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    return float(np.quantile(values, 0.99)), float(values.max())


def markdown(rows: list[tuple[str, ...]], where: str, gigabytes: float) -> str:
    lines = [
        "# Whether a step waits for the disk",
        "",
        f"{where}. Blocks of {BLOCK} steps of each kind in turn. "
        f"Written by `python -m bench.agent.disk_stall --gigabytes {gigabytes:g} --write`.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the checkpoint (4)")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the steps without load are measured (15)")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where journal and checkpoint lie (the repository)")
    parser.add_argument("--write", action="store_true", help="keep the table in bench/results/stall.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
