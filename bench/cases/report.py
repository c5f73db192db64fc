"""Presents the scores: lines for the terminal, and public_cases.md and public_cases.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ammeter.verdicts import BY_ID
from bench.cases.case import Case
from bench.cases.scoring import HALF, MISSED, NAMED, Score
from bench.common.tables import Row, markdown_table

Scored = Sequence[tuple[Case, Score]]


def line_of(case: Case, score: Score) -> str:
    """One case for the terminal."""
    lines = [f"{score.result:>6}  {case.thread}: {', '.join(score.findings) or 'nothing'}"]
    if score.result != NAMED:
        lines += [f"          wanted {', '.join(case.verdicts)}", f"          text: {score.text}"]
        lines += [f"          lacks {pattern!r}" for pattern in score.lacks]
    if score.alarms or score.also:
        lines.append(f"          repaired: {', '.join([*score.alarms, *score.also])}")
    return "\n".join([*lines, *([f"          TROUBLE {score.trouble}"] if score.trouble else [])])


def counts(scored: Scored) -> dict[str, int]:
    """The main figures."""
    results = [score.result for _, score in scored]
    return {
        "cases": len(scored),
        NAMED: results.count(NAMED),
        HALF: results.count(HALF),
        MISSED: results.count(MISSED),
        "false alarms": sum(bool(score.alarms) for _, score in scored),
        "troubles": sum(bool(score.trouble) for _, score in scored),
    }


def summary(scored: Scored) -> list[Row]:
    """The table of counts."""
    figures = counts(scored)
    rows = [
        ("named: the first finding has the verdict and the remedy of the thread", figures[NAMED]),
        ("half: the verdict is not first, or lacks the remedy", figures[HALF]),
        ("missed", figures[MISSED]),
        ("false alarms: repaired programs with the verdict", figures["false alarms"]),
        ("programs that proved nothing", figures["troubles"]),
    ]
    return [("cases", str(figures["cases"])), *((name, str(count)) for name, count in rows)]


def table(scored: Scored) -> list[Row]:
    """A row per case."""
    rows: list[Row] = [("thread", "what went wrong", "result", "first finding", "repaired program", "not rebuilt")]
    for case, score in scored:
        link = f"[{case.thread}]({case.url})"
        rows.append((link, case.title, _result(score), _first(score), _repaired(score), case.limitation or "–"))
    return rows


def markdown(scored: Scored, command: str) -> str:
    """The document public_cases.md."""
    missed = [
        f"- {case.thread}: expected {_expected(case)}; found {', '.join(score.findings) or 'nothing'}.{_lacks(score)}"
        for case, score in scored
        if score.result != NAMED
    ]
    troubles = [f"- {case.thread}: {score.trouble}" for case, score in scored if score.trouble]
    lines = [
        "# Cases of public issue trackers",
        "",
        f"Written by `{command}`. Each case is a thread in which people met a problem of mixed precision, rebuilt as a",
        "small program that knows nothing of Ammeter and runs under `ammeter run` with default settings on a CPU. What",
        "counts as named was written from the thread, before the program was watched. The repaired program applies the",
        "remedy of the thread. The last column states what of the thread the program does not have. Misses have led to",
        "changes of Ammeter, so the figures say what it covers, and not how it does on a thread that it has not seen.",
        "",
        *markdown_table(summary(scored)),
        "",
        "## Cases",
        "",
        *markdown_table(table(scored)),
        "",
        "## Half and missed",
        "",
        *(missed or ["None."]),
        "",
        "## Programs that proved nothing",
        "",
        *(troubles or ["None."]),
        "",
    ]
    return "\n".join(lines)


def write(scored: Scored, folder: Path, command: str) -> None:
    """Writes public_cases.md and public_cases.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "public_cases.md").write_text(markdown(scored, command))
    plain = {"command": command, "figures": counts(scored), "scores": [score for _, score in scored]}
    (folder / "public_cases.json").write_text(json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def _expected(case: Case) -> str:
    """The accepted verdicts; a thread may ask for one that Ammeter does not have."""
    return " or ".join(verdict if verdict in BY_ID else f"{verdict} (no such verdict)" for verdict in case.verdicts)


def _result(score: Score) -> str:
    return "proved nothing" if score.trouble else score.result


def _first(score: Score) -> str:
    return f"`{score.findings[0]}`" if score.findings else "nothing"


def _repaired(score: Score) -> str:
    alarms = [f"**false alarm `{verdict}`**" for verdict in score.alarms]
    return ", ".join([*alarms, *(f"also `{verdict}`" for verdict in score.also)]) or "silent"


def _lacks(score: Score) -> str:
    return f" The text lacks: {', '.join(f'`{pattern}`' for pattern in score.lacks)}." if score.lacks else ""
