"""Histories to import, and what the imported run contains."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ammeter.__main__ import main
from ammeter.recorded.recorded_run import load
from ammeter.report.diagnosis import Report, diagnose


def bring(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Imports with --json; returns what the command says it found."""
    code = main(["import", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert 0 == code, printed.err
    return json.loads(printed.out)


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Imports in vain; returns what the command says."""
    assert 1 == main(["import", *map(str, words)])
    printed = capsys.readouterr()
    assert "" == printed.out
    return " ".join(printed.err.split())


def rows(path: object) -> dict[int, dict[str, float]]:
    """Step -> values of a run with one stream, without those of single tensors."""
    run = load(Path(str(path)), tensors=False)
    (stream,) = run.streams
    return {step: values for section in run.read(stream) for step, _, values in section.records()}


def times(path: object) -> list[int]:
    run = load(Path(str(path)), tensors=False)
    return [time for section in run.read(run.streams[0]) for _, time, _ in section.records()]


def report(path: object) -> Report:
    return diagnose(Path(str(path)))


def verdicts(path: object) -> dict[str, int]:
    """The verdicts with a finding, consequences included, with their first step."""
    return {
        finding.verdict: finding.first_step
        for reported in report(path).findings
        for finding in (reported.finding, *reported.consequences)
    }


def table(folder: Path, lines: list[str]) -> Path:
    file = folder / "history.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def loss_history(steps: int = 400, diverges: int | None = None, nan: int | None = None) -> list[float]:
    """A loss that falls; from a step on it rises, or is NaN at one."""
    found = [2.0 / (1 + step / 50) for step in range(steps)]
    for step in range(diverges if diverges is not None else steps, steps):
        found[step] = found[diverges or 0] * 1.3 ** (step - (diverges or 0))
    if nan is not None:
        found[nan] = math.nan
    return found
