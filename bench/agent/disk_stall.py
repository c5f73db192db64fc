"""Measures whether a training step waits for the disk while another process writes a large checkpoint.

    python -m bench.agent.disk_stall [--gigabytes 4] [--seconds 15] [--quick] [--write]

First: steps of one small GPT in alternating blocks, bare, watched with the journal on disk, and watched with the open
segment on tmpfs; without load, then for the duration of a checkpoint. Then: a row every 2 ms into a journal of each
mode, for the duration of another checkpoint, because waits are rare. The count of voluntary context switches
distinguishes a call that waited from a call that was only preempted.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

import ammeter
from ammeter.journal import Journal
from ammeter.watching import delivery
from ammeter.wire.frames import Steps
from bench.common.paths import RESULTS, ROOT
from bench.common.tables import Row, markdown_table, terminal_table
from bench.common.trainer import GPT, Shape

SHAPE = Shape(vocabulary=96, context=64, layers=4, heads=4, width=96)
BATCH_SIZE = 4
MODES = ("bare", "journal on disk", "open segment on tmpfs")
BLOCK_STEPS = 20
"""Steps in one mode before the next mode."""

ROW_SECONDS = 0.002
ROW_BYTES = 3000

CHECKPOINT_WRITER = """
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
"""Two run at once: one syncs only at its end, the other every 256 MiB, as writers of shards do."""


@dataclass
class Times:
    """Seconds of the steps in one mode, of each call of Journal.append, and of the calls that waited."""

    steps: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    folder = options.folder.absolute()
    needed = int((options.gigabytes + 2) * 2**30)
    free = shutil.disk_usage(folder).free
    if free < needed:
        print(f"{folder} has {free / 2**30:.0f} GiB free; {needed / 2**30:.0f} are needed: choose another --folder")
        return 1
    console = Console()
    with tempfile.TemporaryDirectory(dir=folder, prefix="ammeter-stall-") as place, console.status("measuring ..."):
        unloaded, loaded, rows_only = measure(Path(place), options.gigabytes, options.seconds)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, a checkpoint of {options.gigabytes:g} GB in two files"
    rows = [
        HEADINGS,
        *_rows(unloaded, "steps"),
        *_rows(loaded, "steps beside a checkpoint"),
        *_rows(rows_only, "rows beside a checkpoint"),
    ]
    console.print(terminal_table(rows, machine))
    if options.write:
        (RESULTS / "stall.md").write_text(markdown(rows, machine, options.gigabytes))
    return 0


TimesByMode = dict[str, Times]


def measure(place: Path, gigabytes: float, seconds: float) -> tuple[TimesByMode, TimesByMode, TimesByMode]:
    """Returns steps without load, steps beside a checkpoint, and rows beside a checkpoint."""
    training = Training(place)
    try:
        training.block({mode: Times() for mode in MODES})
        end = time.monotonic() + seconds
        unloaded = training.run(lambda: time.monotonic() < end)
        with _checkpoint(place, gigabytes) as is_writing:
            loaded = training.run(is_writing)
    finally:
        training.close()
    with _checkpoint(place, gigabytes) as is_writing:
        return unloaded, loaded, _rows_only(place, is_writing)


@contextmanager
def _checkpoint(place: Path, gigabytes: float) -> Iterator[Callable[[], bool]]:
    """Starts two writers and yields a function that returns whether they still write."""
    command = [sys.executable, "-c", CHECKPOINT_WRITER]
    size = str(int(gigabytes * 1e9 / 2))
    writers = [subprocess.Popen([*command, str(place / f"{sync}.pt"), size, sync]) for sync in ("sync", "late")]
    try:
        yield lambda: any(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def _rows_only(place: Path, is_writing: Callable[[], bool]) -> TimesByMode:
    hot = delivery.TMPFS_FOLDER / f"ammeter-stall-{os.getpid()}"
    journals = {
        MODES[1]: Journal(place / "rows-on-disk"),
        MODES[2]: Journal(place / "rows-on-tmpfs", hot=hot, hot_bytes=2**30, segment_bytes=2**29),
    }
    found = {mode: Times() for mode in journals}
    row = Steps(1, 1, bytes(ROW_BYTES))
    try:
        while is_writing():
            for mode, journal in journals.items():
                _timed(journal.append, row, found[mode])
            time.sleep(ROW_SECONDS)
    finally:
        for journal in journals.values():
            journal.close()
        shutil.rmtree(hot, ignore_errors=True)
    return found


def _timed(append: Callable[[Steps], bool], frame: Steps, times: Times) -> bool:
    began, switches = time.perf_counter(), _voluntary_switches()
    try:
        return append(frame)
    finally:
        times.appends.append(time.perf_counter() - began)
        if _voluntary_switches() > switches:
            times.waits.append(times.appends[-1])


class Training:
    """One model, trained in turn bare and under each of two watching sessions."""

    def __init__(self, place: Path) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self._model = GPT(SHAPE)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._data = torch.randint(SHAPE.vocabulary, (64, BATCH_SIZE, SHAPE.context + 1))
        self._count = 0
        self._times = Times()
        self._runs = {}
        tmpfs = delivery.TMPFS_FOLDER
        for mode, hot in zip(MODES[1:], (place / "none", tmpfs), strict=True):
            delivery.TMPFS_FOLDER = hot
            self._runs[mode] = run = ammeter.watch(self._model, self._optimizer, dir=place / mode.replace(" ", "-"))
            assert run._session is not None, "nothing to measure: AMMETER_DISABLE is set"
            self._time_appends(run._session.journal)
            run._session.unsubscribe()
        delivery.TMPFS_FOLDER = tmpfs

    def run(self, goes_on: Callable[[], bool]) -> TimesByMode:
        found = {mode: Times() for mode in MODES}
        while goes_on():
            self.block(found)
        return found

    def block(self, found: dict[str, Times]) -> None:
        """BLOCK_STEPS steps in each mode; the first mode rotates."""
        for mode in MODES[self._count % 3 :] + MODES[: self._count % 3]:
            session = self._runs[mode]._session if mode in self._runs else None
            self._times = found[mode]
            if session:
                session.subscribe()
            for _ in range(BLOCK_STEPS):
                began = time.perf_counter()
                self._step()
                found[mode].steps.append(time.perf_counter() - began)
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


def _voluntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


HEADINGS = (
    *("what", "watching", "steps", "median ms", "p99 ms", "slowest ms"),
    *("appends", "p99 ms", "slowest ms", "slept", "slept ms in all", "longest sleep ms"),
)


def _rows(found: TimesByMode, what: str) -> list[Row]:
    rows: list[Row] = []
    for mode, times in found.items():
        steps, appends, waits = (1000 * np.array(seconds) for seconds in (times.steps, times.appends, times.waits))
        step_cells, append_cells = [""] * 4, [""] * 6
        if steps.size:
            step_cells = [f"{steps.size}", *(f"{value:.1f}" for value in (np.median(steps), *_tail(steps)))]
        if mode != "bare" and appends.size:
            append_cells = [f"{appends.size}", *(f"{value:.2f}" for value in _tail(appends))]
            append_cells += [f"{waits.size}", f"{waits.sum():.1f}", f"{waits.max(initial=0):.1f}"]
        rows.append((what, mode, *step_cells, *append_cells))
    return rows


def _tail(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """99th percentile and maximum."""
    return float(np.quantile(values, 0.99)), float(values.max())


def markdown(rows: Sequence[Row], machine: str, gigabytes: float) -> str:
    lines = [
        "# Whether a step waits for the disk",
        "",
        f"{machine}. Blocks of {BLOCK_STEPS} steps in each mode in turn. "
        f"Written by `python -m bench.agent.disk_stall --gigabytes {gigabytes:g} --write`.",
        "",
        *markdown_table(rows),
    ]
    return "\n".join(lines) + "\n"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the checkpoint (4)")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of the steps without load (15)")
    parser.add_argument("--folder", type=Path, default=ROOT, help="folder of journal and checkpoint (the repository)")
    parser.add_argument("--quick", action="store_true", help="only checks that it runs: 0.5 GB and 3 seconds")
    parser.add_argument("--write", action="store_true", help="write the table to bench/results/stall.md")
    options = parser.parse_args(arguments)
    if options.quick:
        if options.write:
            parser.error("--quick measures too little for bench/results; leave out --write")
        options.gigabytes, options.seconds = 0.5, 3.0
    return options


if __name__ == "__main__":
    sys.exit(main())
