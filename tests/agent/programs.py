"""Programs as people write them, each run in a process of its own, and what it left in its journal."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ammeter import journal
from ammeter.wire.frames import Bye, Steps
from tests import forked

BEGIN = """
import os, signal, sys
import torch
import ammeter

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


run = ammeter.watch(model, optimizer)
"""


@dataclass
class Program:
    """A program that runs: `python script.py` with its journal in `folder`."""

    process: subprocess.Popen[str]
    folder: Path

    def end(self, seconds: float = 90) -> Ended:
        """Waits for it; what it started has to be gone with it, and is ended if it is not."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.communicate()
            left = end_group(self.process.pid)
        return Ended(self.process.returncode, out, err, self.folder, left)


@dataclass
class Ended:
    """How it ended. left: whether a process that it started was still there."""

    code: int
    out: str
    err: str
    folder: Path
    left: bool

    def streams(self) -> list[list[Any]]:
        """The frames of each stream that the program wrote. Their locks are released a moment after its end."""
        folders = [stream for run in sorted(self.folder.glob("*")) for stream in journal.streams(run)]
        deadline = time.monotonic() + 10
        while alive := [folder for folder in folders if journal.is_alive(folder)]:
            assert time.monotonic() < deadline, alive
            time.sleep(0.02)
        return [[entry.frame for entry in journal.read(folder)] for folder in folders]

    def at(self, folder: Path) -> Ended:
        """The same, its journal looked for in another folder."""
        return replace(self, folder=folder)

    def stream(self) -> list[Any]:
        (only,) = self.streams()
        return only


def start(body: str, folder: Path, *, begin: str = BEGIN, levels: int = 0, **environment: str) -> Program:
    """Starts the program in a process group of its own; `folder` gets its script and its journal.

    It is a fork of a process that has imported torch. levels: 1 if its Python children are forks, too.
    """
    return _start(functools.partial(forked.Popen, levels=levels), begin + textwrap.dedent(body), folder, environment)


def start_fresh(body: str, folder: Path, *, begin: str = BEGIN, **environment: str) -> Program:
    """As start(), in a new interpreter: for what is about its start, its imports or its memory."""
    return _start(subprocess.Popen, begin + textwrap.dedent(body), folder, environment)


def _start(
    popen: Callable[..., subprocess.Popen[str]], body: str, folder: Path, environment: dict[str, str]
) -> Program:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(body)
    dir = folder / "ammeter"
    process = popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "AMMETER_DIR": str(dir), **environment},
        start_new_session=True,
    )
    return Program(process, dir)


def steps(frames: list[Any]) -> list[int]:
    return [frame.step for frame in frames if isinstance(frame, Steps)]


def bye(frames: list[Any]) -> tuple[str, str] | None:
    """(reason, message) of the goodbye; None without one."""
    said = [(frame.reason, frame.message) for frame in frames if isinstance(frame, Bye)]
    assert len(said) < 2
    return said[0] if said else None


def end_group(group: int, seconds: float = 5) -> bool:
    """Whether a process of the group outlives the program for long; it is killed then. Python's own need a moment."""
    deadline = time.monotonic() + seconds
    while _signal(group, 0):
        if time.monotonic() > deadline:
            return _signal(group, signal.SIGKILL)
        time.sleep(0.02)
    return False


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
