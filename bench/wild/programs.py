"""Runs healthy programs that others wrote, bare and under `ammeter run`, and compares how they end.

A program runs twice without Ammeter: numbers and output that differ between these two runs are not repeatable, and
prove nothing. Each run has a copy of the program's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.common.program_end import End, run_to_end
from bench.common.tables import Row

WEIGHTS_SITE = Path(__file__).parent / "weights_site"

PROGRAM_SECONDS = 600.0
"""Time limit of a program."""

SAME, CHANGED, NOT_REPEATABLE = "same", "CHANGED", "not repeatable"


@dataclass(frozen=True)
class Outcome:
    """Two bare runs and a watched one. findings: of all runs that Ammeter reported; None without a report."""

    program: str
    bare: End
    again: End
    watched: End
    findings: list[dict[str, Any]] | None

    def compared(self, part: str) -> str:
        """SAME, CHANGED or NOT_REPEATABLE. part: "code", "output" or "weights"."""
        bare, again, watched = (getattr(end, part) for end in (self.bare, self.again, self.watched))
        if bare != again:
            return NOT_REPEATABLE
        return SAME if bare == watched else CHANGED

    @property
    def is_changed(self) -> bool:
        return CHANGED in (self.compared("code"), self.compared("output"), self.compared("weights"))

    def has(self, severity: str) -> bool:
        """Whether there is a finding of this severity."""
        return any(finding["severity"] == severity for finding in self.findings or ())


def scripts(folder: Path) -> list[Path]:
    """Scripts of a folder that use torch, and the train.py of each folder in it.

    Raises:
        ValueError: there is none.
    """
    found = [path for path in sorted(folder.glob("*.py")) if "torch" in path.read_text(errors="replace")]
    found += sorted(folder.glob("*/train.py"))
    if not found:
        raise ValueError(f"{folder} has no script that uses torch; name a folder with *.py or */train.py")
    return [path.resolve() for path in found]


def run_all(folder: Path, workers: int) -> Iterator[Outcome]:
    """Runs all scripts of a folder, a few at a time."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(run, scripts(folder))


def run(script: Path) -> Outcome:
    """Runs one script three times."""
    with tempfile.TemporaryDirectory(prefix="wild-") as name:
        folder = Path(name)
        bare, again = (_end(script, folder / part, []) for part in ("bare", "again"))
        watched = _end(script, folder / "watched", ["-m", "ammeter", "run", "--", sys.executable])
        return Outcome(f"{script.parent.name}/{script.name}", bare, again, watched, _findings(folder / "watched"))


def table(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row per program."""
    rows: list[Row] = [("program", "exit code", "output", "weights", "findings")]
    for outcome in outcomes:
        parts = (outcome.compared(part) for part in ("output", "weights"))
        code = "time limit" if outcome.bare.code is None else str(outcome.bare.code)
        code += "" if outcome.compared("code") == SAME else f", {outcome.compared('code')}: {outcome.watched.code}"
        rows.append((outcome.program, code, *parts, _found(outcome)))
    return rows


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line about all programs."""
    counts = Counter(name for outcome in outcomes for name in ("page", "ticket") if outcome.has(name))
    changed = sum(outcome.is_changed for outcome in outcomes)
    return (
        f"{len(outcomes)} programs: {changed} changed by watching,"
        f" {counts['page']} with a page, {counts['ticket']} with a ticket"
    )


def details(outcomes: Sequence[Outcome]) -> list[str]:
    """The findings, and the last lines of programs that fail."""
    lines = [
        f"{outcome.program}: {finding['severity']} {finding['verdict']}: {finding.get('title') or finding['cause']}"
        for outcome in outcomes
        for finding in outcome.findings or ()
    ]
    failed = [(outcome, outcome.watched.errors.strip().splitlines()) for outcome in outcomes if outcome.watched.code]
    return [*lines, *(f"{outcome.program}: {errors[-1]}" for outcome, errors in failed if errors)]


def _found(outcome: Outcome) -> str:
    if outcome.findings is None:
        return "no report"
    return ", ".join(f"{finding['verdict']} ({finding['severity']})" for finding in outcome.findings) or "nothing"


def _end(script: Path, folder: Path, launcher: list[str]) -> End:
    """Runs a copy of the script's folder."""
    program = folder / "program"
    shutil.copytree(script.parent, program, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".git"))
    paths = [str(WEIGHTS_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"AMMETER_DIR": str(folder / "journal"), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *launcher, str(program / script.name)]
    end = run_to_end(command, program, environment, folder / "weights", PROGRAM_SECONDS)
    return replace(end, output=end.output.replace(str(folder), ""))


def _findings(folder: Path) -> list[dict[str, Any]] | None:
    command = [sys.executable, "-m", "ammeter", "report", str(folder / "journal"), "--json", "--all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    if done.returncode not in (0, 3):
        return None
    return [finding for report in json.loads(done.stdout)["items"] for finding in report["findings"]]
