"""The machine of a measurement, as result files name it."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """The CPU's model name, or the architecture where the system does not name the model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def cpu_and_cores() -> str:
    return f"{cpu_model()}, {os.cpu_count()} cores"


def drop_settings() -> None:
    """Removes all AMMETER_ variables, so that every measurement starts with the default settings."""
    for name in [name for name in os.environ if name.startswith("AMMETER_")]:
        del os.environ[name]
