"""Runs a program under Ammeter as a user does, and reads the report.

Programs are forks of a process that has imported torch, which otherwise takes most of their CPU time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tests import forked

PROGRAM_SECONDS = 300.0
"""Time limit of a program; the slowest takes 10 s, and a busy machine takes longer."""

REPORT = ("ammeter.report.command", "ammeter.verdicts")
"""Imports of `ammeter report`."""


class Watched(msgspec.Struct, frozen=True):
    """A watched program. reports: one per run that Ammeter saw, as `ammeter report --json` prints it."""

    code: int | None
    output: str
    reports: list[dict[str, Any]]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [finding for report in self.reports for finding in report["findings"]]


def watch(
    command: Sequence[str],
    folder: Path,
    *,
    ranks: int = 1,
    launched: bool = True,
    lives: int = 1,
    seconds: float = PROGRAM_SECONDS,
    settings: Mapping[str, str] | None = None,
) -> Watched:
    """Runs a script in a folder and reads the report of its runs.

    Args:
        command: The script and its arguments.
        folder: Working directory, which also receives the journals.
        ranks: Started by torchrun if there are several.
        launched: Whether `ammeter run` starts it; else the script calls watch().
        lives: Number of starts after each other.
        seconds: Time limit of each start.
        settings: Further environment variables.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
    environment |= {"AMMETER_DIR": str(folder / "journal"), "OMP_NUM_THREADS": "1", **(settings or {})}
    words, levels = list(command), 0
    if ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", free_port()]
        words, levels = [*torchrun, *words], levels + 1
    if launched:
        words, levels = ["-m", "ammeter", "run", "--", sys.executable, *words], levels + 1
    code, output = 0, ""
    for _ in range(lives):
        code, more = run_python(words, folder, environment, forked.LAUNCH, levels, seconds=seconds)
        output += more
        if code != 0:
            break
    asked = ["-m", "ammeter", "report", str(folder / "journal"), "--json", "--all"]
    reported, text = run_python(asked, folder, environment, REPORT, errors=False)
    return Watched(code, output, json.loads(text)["items"] if reported in (0, 3) else [])


def run_python(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    imports: Sequence[str],
    levels: int = 0,
    *,
    errors: bool = True,
    seconds: float = PROGRAM_SECONDS,
) -> tuple[int, str]:
    """Exit code and output of Python. After the time limit everything that it has started ends.

    levels: of the Python processes below it that are forks, too.
    """
    process = forked.Popen(
        [sys.executable, *arguments],
        imports=imports,
        levels=levels,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        output, _ = process.communicate()
    return process.returncode, output.decode(errors="replace")


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def kill_group(process: int | None) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process or 0, signal.SIGKILL)
