"""Runs a command under `ammeter run`, and ends it after a number of steps."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ammeter import journal
from ammeter.journal.find import views

POLL_SECONDS = 0.05
"""A fast program makes a few hundred steps in it; only steps that both runs have are compared."""

IDLE_FACTOR = 50
"""How much longer the canary sleeps than it reads, so that it takes no more than 2 % of a core from what it measures.
Without shared memory it reads the journal, which grows."""

GRACE_SECONDS = 60.0
"""Time between SIGTERM and SIGKILL. A program that catches SIGTERM may write a checkpoint first."""

STDERR = 2

ENDED_BY_CANARY = ("run-lost",)
"""Verdicts on the end of a run, which the canary causes."""


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        folder: in which its journal is.
        stopped: whether the canary ended it after the steps.
        code: the exit code of `ammeter run`, which is that of the command; negative for a signal.
    """

    folder: Path
    stopped: bool
    code: int

    @property
    def failed(self) -> bool:
        return not self.stopped and self.code != 0

    @property
    def text(self) -> str:
        if self.stopped:
            return "was stopped by the canary"
        return (
            f"ended with exit code {self.code}"
            if self.code >= 0
            else f"was killed by {signal.Signals(-self.code).name}"
        )


def run(
    command: Sequence[str],
    folder: Path,
    name: str,
    steps: int,
    environment: Mapping[str, str],
    silenced: Sequence[str] = (),
) -> Ended:
    """Runs the command until it ends, or has made so many steps. What it prints goes to stderr.

    Args:
        silenced: verdicts on what the canary itself does to this run.
    """
    options = ["--dir", str(folder), "--name", name, "--silence", ",".join([*ENDED_BY_CANARY, *silenced])]
    words = [sys.executable, "-m", "ammeter", "run", *options, "--", *command]
    with _ended_with_us(subprocess.Popen(words, env=environment, stdout=STDERR)) as process:
        stopped = False
        while process.poll() is None:
            began = time.monotonic()
            if steps_of(folder) >= steps:
                stopped = True
                _end(process)
            else:
                time.sleep(max(POLL_SECONDS, IDLE_FACTOR * (time.monotonic() - began)))
        return Ended(folder, stopped, process.returncode)


def steps_of(folder: Path) -> int:
    """Returns the number of steps that the furthest rank of the run has completed."""
    return 1 + max((_last_step(stream) for run in _runs(folder) for stream in journal.streams(run)), default=-1)


def _runs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _last_step(stream: Path) -> int:
    """Returns the last completed step, from shared memory, or where there is none from the journal."""
    step, _ = journal.newest_step(stream)
    if step >= 0:
        return step
    return max((int(view.steps[-1]) for view in views(stream) if len(view)), default=-1)


@contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends the run if an error or a signal ends the canary."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield process
    finally:
        if process.poll() is None:
            _end(process)
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # the command is killed with its parent
        process.wait()
