"""Presents the outcomes: a line per run for the terminal, and public_programs.md and .json."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.common.machine import cpu_and_cores
from bench.common.tables import Row, markdown_table
from bench.public import checking
from bench.public.runner import Outcome

HEADING = ("program", "an example of", "precision", "output and weights", "report", "speed", "findings", "fault named")


def row(outcome: Outcome) -> Row:
    """A line of the table."""
    program = outcome.program
    about = (program.name, program.kind, outcome.precision)
    if outcome.missing:
        return (*about, f"did not run: {outcome.missing}", "", "", "", "")
    if outcome.bare.code != 0:
        return (*about, f"fails without Ammeter: {_last_line(outcome.bare.errors)}", "", "", "", "")
    wrong, speed = checking.wrong(outcome), checking.speed(outcome)
    return (
        *about,
        _compared(outcome),
        "; ".join(wrong) or ("true" if outcome.report else "none, and it says so"),
        "" if speed is None else f"{speed:.2f}",
        _found(outcome),
        "; ".join(_named(outcome)),
    )


def is_good(outcome: Outcome) -> bool:
    """Whether all of it ran, and everything is as it should be."""
    ran = not outcome.missing and outcome.bare.code == 0
    return ran and not checking.changed(outcome) and not checking.wrong(outcome) and not checking.unconfirmed(outcome)


def summary(outcomes: Sequence[Outcome]) -> list[Row]:
    """The main figures."""
    ran = [outcome for outcome in outcomes if not outcome.missing and outcome.bare.code == 0]
    planted = [checking.is_named(outcome, fault) for outcome in ran for fault in outcome.broken]
    return [
        ("of", "runs"),
        ("programs", f"{len({outcome.program.name for outcome in ran})} of {len({o.program.name for o in outcomes})}"),
        ("programs and precisions", f"{len(ran)} of {len(outcomes)}"),
        ("unchanged by watching", f"{sum(not checking.changed(outcome) for outcome in ran)} of {len(ran)}"),
        ("with a true report", f"{sum(not checking.wrong(outcome) for outcome in ran)} of {len(ran)}"),
        ("healthy, and without a finding", f"{sum(not _findings(outcome) for outcome in ran)} of {len(ran)}"),
        (
            "with a finding that the recorder does not confirm",
            f"{sum(map(bool, map(checking.unconfirmed, ran)))} of {len(ran)}",
        ),
        ("planted faults that are named first", f"{sum(planted)} of {len(planted)}"),
    ]


def write(outcomes: Sequence[Outcome], folder: Path, load: float) -> None:
    """Writes both result files. load: that of the machine before the first program."""
    folder.mkdir(parents=True, exist_ok=True)
    commits = sorted({(outcome.program.repository, outcome.program.commit[:12]) for outcome in outcomes})
    lines = [
        "# Programs of others",
        "",
        "Each program runs as it is, with smaller numbers and stand-ins for data that it would download: bare,",
        "with a recorder and without Ammeter, under `ammeter run`, and under `ammeter run` with a fault that is",
        "planted from outside. *Output and weights*: whether they are the same with and without Ammeter; what",
        "differs between two runs without it is *not repeatable*. *Report*: steps, skipped steps, losses and",
        "precision, compared with the recorder's. *Speed*: seconds per step in the report, as a ratio to the",
        "recorder's, which is another run. *Fault named*: by the first finding that the healthy run does not have.",
        "*Findings* of the program as it is: *confirmed* where the recorder shows",
        "the same, such as a loss that autocast on a CPU computes in half precision.",
        "",
        *markdown_table(summary(outcomes)),
        "",
        *markdown_table([HEADING, *map(row, outcomes)]),
        "",
        *(f"- {repository} at `{commit}`" for repository, commit in commits),
        "",
        f"torch {version('torch')}, Python {platform.python_version()}, {cpu_and_cores()}; load before: {load:.1f}.",
    ]
    (folder / "public_programs.md").write_text("\n".join(lines) + "\n")
    (folder / "public_programs.json").write_text(
        json.dumps([_document(outcome) for outcome in outcomes], indent=1) + "\n"
    )


def _document(outcome: Outcome) -> dict[str, Any]:
    return dict(zip(HEADING, row(outcome), strict=True)) | {"ran": not outcome.missing and outcome.bare.code == 0}


def _compared(outcome: Outcome) -> str:
    if changes := checking.changed(outcome):
        return f"CHANGED: {', '.join(changes)}"
    varies = checking.not_repeatable(outcome)
    return f"same; not repeatable: {', '.join(varies)}" if varies else "same"


def _findings(outcome: Outcome) -> list[dict[str, Any]]:
    return outcome.report["findings"] if outcome.report else []


def _found(outcome: Outcome) -> str:
    unconfirmed = checking.unconfirmed(outcome)
    marked = (
        f"{finding['verdict']} ({finding['severity']}{'' if finding['verdict'] in unconfirmed else ', confirmed'})"
        for finding in _findings(outcome)
    )
    return ", ".join(marked) or "none"


def _named(outcome: Outcome) -> list[str]:
    marks = []
    for fault in outcome.broken:
        first = checking.first_of_fault(outcome, fault) or "nothing"
        marks.append(f"{fault.name}: {'yes' if checking.is_named(outcome, fault) else f'NO, {first}'}")
    return marks


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
