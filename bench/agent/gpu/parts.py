"""The parts of the benchmark, and how one runs: a process of its own with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.agent.gpu.rows import ROWS
from bench.common.paths import ROOT

COMMAND = [sys.executable, "-m", "bench.agent.gpu"]

MAX_ERROR_CHARS = 4_000
"""Characters of error output that the result keeps from a failed part."""

POLL_SECONDS = 0.2
NOTE_SECONDS = 20.0
"""Interval of the lines that tell how much time is left."""


@dataclass(frozen=True)
class Part:
    """A section of the result.

    Attributes:
        seconds: Time limit.
        least: Seconds below which it does not start.
    """

    title: str
    seconds: float
    least: float


MACHINE = "machine"
COMPILE = "compile"
"""Not a part: compiles in the background, while tests run, what the part `compiled` measures."""

PARTS = {
    MACHINE: Part("The machine", 60, 10),
    "kernel": Part("What does reading all gradients cost?", 50, 15),
    "tests": Part("Is watched training the same?", 150, 20),
    "cost": Part("What does a step cost?", 150, 30),
    "compiled": Part("What does a step of a compiled model cost?", 115, 30),
}
"""In the order of their value: a machine that is taken away has measured what matters most."""

TOTAL_SECONDS = 465.0


@dataclass(frozen=True)
class Ended:
    """How a part ended. failure: empty without one."""

    failure: str
    output: str
    seconds: float


def run(
    name: str, seconds: float, environment: dict[str, str], options: list[str], say: Callable[[str], None]
) -> Ended:
    """Runs a part and shows its output while it runs; its process group ends with it."""
    began = noted = time.monotonic()
    with process(name, environment, options) as (started, output, errors):
        shown = 0
        failure = f"it took longer than {seconds:.0f} s"
        while time.monotonic() < began + seconds:
            code = started.poll()
            text = _read(output)
            if "\n" in text[shown:]:
                end = text.rindex("\n") + 1
                say(text[shown:end].rstrip("\n"))
                shown, noted = end, time.monotonic()
            if code is not None:
                failure = f"it ended with {code}" if code else ""
                break
            if time.monotonic() > noted + NOTE_SECONDS:
                noted = time.monotonic()
                say(f"... {name}: {noted - began:.0f} s, at most {began + seconds - noted:.0f} s left")
            time.sleep(POLL_SECONDS)
        end_group(started)
        text, error = _read(output).strip(), _read(errors)[-MAX_ERROR_CHARS:].strip()
    if failure and error:
        say(error)
        text = f"{text}\n\n```text\n{error}\n```".strip()
    return Ended(failure, text, time.monotonic() - began)


@contextmanager
def process(
    name: str, environment: dict[str, str], options: list[str]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[str], IO[str]]]:
    """A part's process, its output and its errors; the process ends with the block."""
    command = [*COMMAND, "--part", name, *options]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = subprocess.Popen(
            command, stdout=output, stderr=errors, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            yield started, output, errors
        finally:
            end_group(started)


def end_group(started: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def environment(rows: Path, *, dry: bool) -> dict[str, str]:
    """What the parts' processes get: a kept cache of compiled kernels and models, and no download of anything."""
    caches = ROOT / "build" / "gpu" / "caches"
    known = {
        **os.environ,
        ROWS: str(rows),
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "PYTHONPATH": os.pathsep.join(
            dict.fromkeys([str(ROOT / "agent"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        ),
    }
    return known | ({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if dry else {})


def _read(file: IO[str]) -> str:
    """What a process has written so far; the place at which it writes stays."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
