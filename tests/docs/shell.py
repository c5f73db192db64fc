"""Runs blocks of commands as a reader does, in a folder of their own, with the programs of this environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = {
    "accelerate": "-m accelerate.commands.accelerate_cli",
    "ammeter": "-m ammeter",
    "ammeter-server": "-m ammeter_server",
    "pip": "-m pip",
    "python": "",
    "torchrun": "-m torch.distributed.run",
}
"""Program -> the arguments with which this Python is that program. A fresh checkout has none of them on PATH."""

SECONDS = 240


class Failed(AssertionError):
    """The commands ended with another exit code than 0."""


def run(
    shell: str, folder: Path, programs: Mapping[str, str] = PROGRAMS, environment: Mapping[str, str] | None = None
) -> str:
    """Runs commands with `bash -e`, and returns their output. Everything that they start ends with them.

    Args:
        folder: The current folder; its `home` is the home folder.
        programs: Program -> arguments of this Python.
        environment: Variables beside those of this process.
    """
    (folder / "home").mkdir(exist_ok=True)
    bin = folder / "bin"
    bin.mkdir(exist_ok=True)
    for name, arguments in programs.items():
        (bin / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (bin / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
    variables = {**kept, "HOME": str(folder / "home"), "PATH": f"{bin}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["bash", "-e", "-c", shell],
        cwd=folder,
        env={**variables, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        _end(process)
    if process.returncode != 0:
        raise Failed(output)
    return output


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
