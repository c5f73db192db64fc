"""Runs a public program bare, recorded, watched, and watched with a fault."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.common.program_end import NEVER_RUN, End, run_to_end
from bench.public.program import SITE, Fault, Program
from bench.public.sources import Missing, prepared

RUN_SECONDS = 600.0
REPORT_SECONDS = 120.0
WATCHED = ("-m", "ammeter", "run", "--", sys.executable)


@dataclass(frozen=True)
class Outcome:
    """What is known of a program in one precision.

    Attributes:
        missing: Why it could not run; all else is empty then.
        bare, recorded, watched: Its ends. The recorded one shows whether the output is repeatable.
        truth: What the recorder noted.
        report: What Ammeter reports of the watched run, None for nothing.
        broken: Fault -> findings of the watched run with this fault.
    """

    program: Program
    precision: str
    missing: str = ""
    bare: End = NEVER_RUN
    recorded: End = NEVER_RUN
    watched: End = NEVER_RUN
    truth: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    broken: dict[Fault, list[dict[str, Any]]] = field(default_factory=dict)


def run(program: Program, sources: Path) -> Iterator[Outcome]:
    """Yields an outcome per precision."""
    absent = [name for name in program.modules if importlib.util.find_spec(name) is None]
    with tempfile.TemporaryDirectory(prefix="public-") as name:
        folder = Path(name)
        try:
            if absent:
                raise Missing(f"not installed: {', '.join(absent)}")
            script = prepared(program, sources, folder / "source")
        except Missing as missing:
            yield from (Outcome(program, precision, str(missing)) for precision in program.precisions)
            return
        for precision in program.precisions:
            yield _outcome(program, precision, script.relative_to(folder / "source"), folder)


def _outcome(program: Program, precision: str, script: Path, folder: Path) -> Outcome:
    truth = folder / f"truth-{precision}.json"
    bare = _end(program, precision, script, folder)
    recording = {"PUBLIC_TRUTH": str(truth), "PUBLIC_OPTIMIZERS": str(program.optimizers)}
    recorded = _end(program, precision, script, folder, **recording)
    watched, report = _watched(program, precision, script, folder)
    broken = {}
    for fault in program.faults:
        if fault.precision in ("", precision):
            _, found = _watched(program, precision, script, folder, PUBLIC_FAULT=str(fault))
            broken[fault] = found["findings"] if found else []
    known = json.loads(truth.read_text()) if truth.exists() else {}
    return Outcome(program, precision, "", bare, recorded, watched, known, report, broken)


def _watched(
    program: Program, precision: str, script: Path, folder: Path, **variables: str
) -> tuple[End, dict[str, Any] | None]:
    with tempfile.TemporaryDirectory(prefix="journal-", dir=folder) as journal:
        end = _end(program, precision, script, folder, *WATCHED, AMMETER_DIR=journal, **variables)
        command = [sys.executable, "-m", "ammeter", "report", journal, "--json", "--all"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=REPORT_SECONDS, check=False)
        items = json.loads(done.stdout)["items"] if done.returncode in (0, 3) else []
        return end, items[0] if items else None


def _end(program: Program, precision: str, script: Path, folder: Path, *launcher: str, **variables: str) -> End:
    """Runs a copy of the program, always in the same folder."""
    copy, weights = folder / "program", folder / "weights"
    for path in (copy, weights):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder / "source", copy, symlinks=True)
    environment = {"PYTHONPATH": os.pathsep.join((str(SITE), str(copy)))}
    environment |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONHASHSEED": "0"}
    environment |= program.environment(precision) | variables
    command = [sys.executable, *launcher, *program.command(precision, script.name)]
    end = run_to_end(command, copy / script.parent, environment, weights, RUN_SECONDS)
    return replace(end, output=re.sub(program.varying, "", end.output)) if program.varying else end
