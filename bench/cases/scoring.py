"""Scores the report of a case: whether it names what the people of the thread found."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bench.cases.case import Case
from bench.common.watched import Watched

NAMED, HALF, MISSED = "named", "half", "missed"


class Score(msgspec.Struct, frozen=True):
    """The score of a case.

    Attributes:
        result: NAMED: the first finding has a right verdict, and its text the remedy. HALF: some finding has a right
            verdict. MISSED: none has.
        findings: Verdicts of the broken program, in the order of the report.
        text: Cause and fix of the finding that was judged, or of the first one.
        lacks: Patterns of the remedy that the text does not match.
        alarms: Right verdicts that the repaired program has all the same.
        also: Its other verdicts.
        trouble: Why the run proves nothing, such as a repaired program that fails; else ''.
    """

    thread: str
    result: str
    findings: list[str]
    text: str = ""
    lacks: list[str] = []
    alarms: list[str] = []
    also: list[str] = []
    trouble: str = ""


def score(case: Case, broken: Watched, repaired: Watched) -> Score:
    """Compares the findings of the broken and of the repaired program with what the thread found."""
    findings = broken.findings
    right = [finding for finding in findings if finding["verdict"] in case.verdicts]
    shown = next(iter(right or findings), None)
    lacks = [] if shown is None else [pattern for pattern in case.fix if not re.search(pattern, _text(shown), re.I)]
    named = bool(right) and findings[0] is shown and not lacks
    others = [finding["verdict"] for finding in repaired.findings]
    return Score(
        case.thread,
        NAMED if named else HALF if right else MISSED,
        [finding["verdict"] for finding in findings],
        "" if shown is None else _text(shown),
        lacks,
        [verdict for verdict in others if verdict in case.verdicts],
        [verdict for verdict in others if verdict not in case.verdicts],
        _trouble(broken, repaired),
    )


def _text(finding: dict[str, Any]) -> str:
    return f"{finding['cause']} {finding['fix']}"


def _trouble(broken: Watched, repaired: Watched) -> str:
    if not broken.reports:
        return f"no report; the program ended with {broken.code}: {broken.output.strip()[-200:]}"
    if repaired.code != 0:
        return f"the repaired program ended with {repaired.code}: {repaired.output.strip()[-200:]}"
    return ""
