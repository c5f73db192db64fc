"""Runs a program of others to its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class End:
    """How a run ended. code: None after the time limit. weights: digest of the trained parameters by rank."""

    code: int | None
    output: str
    weights: dict[str, str]
    errors: str = ""


NEVER_RUN = End(None, "", {})


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], weights: Path, seconds: float
) -> End:
    """Runs a command. After the time limit everything that it has started ends.

    Args:
        folder: Its working directory.
        environment: Its variables, without the settings of Ammeter that this process has.
        weights: Folder of the digests, new.
        seconds: Time limit.
    """
    weights.mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**inherited, **environment, "WILD_WEIGHTS": str(weights)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    code: int | None = None
    try:
        output, errors = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    return End(code, output, {file.name: file.read_text() for file in sorted(weights.iterdir())}, errors)
