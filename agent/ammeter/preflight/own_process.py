"""Runs work with the user's model in a process of its own, which may crash, and reads its result from a file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ammeter.environment import settings

WORKER = "ammeter.preflight.worker"


class Ended(NamedTuple):
    """How the process ended.

    Attributes:
        result: what it computed; None if it did not end by itself.
        death: why it has no result, such as `killed by SIGKILL`; empty if it has one.
        output: the last lines that it printed, if they were kept.
    """

    result: dict[str, Any] | None
    death: str = ""
    output: str = ""


def run(
    task: str,
    arguments: Mapping[str, Any],
    *,
    timeout: float | None = None,
    variables: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> Ended:
    """Runs a task of the worker.

    What the user's code prints goes to stderr, so that stdout has the result of the command only.

    Args:
        timeout: seconds until the process is killed.
        variables: environment variables of the process besides those of this one.
        quiet: keep what it prints instead of showing it.
    """
    with tempfile.TemporaryDirectory(prefix="ammeter-") as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", WORKER, task, str(file), json.dumps(dict(arguments))]
        environment = {**settings.variables(), **(variables or {})}
        log = Path(folder) / "output"
        with log.open("wb") as sink:
            output = sink if quiet else sys.stderr.fileno()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
            death = _await(process, timeout)
        output = log.read_text("utf-8", "replace")[-2000:].strip()
        if file.is_file():
            return Ended(json.loads(file.read_text("utf-8")), output=output)
        return Ended(None, death, output)


def _await(process: subprocess.Popen[bytes], timeout: float | None) -> str:
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return f"no result after {timeout:g} s"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with exit code {status}"
