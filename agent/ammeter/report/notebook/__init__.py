"""The report of a run as an object that a notebook displays: text, and HTML with curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ammeter.report import terminal
from ammeter.report.diagnosis import Report, ReportedFinding, diagnose
from ammeter.report.notebook import page
from ammeter.report.notebook.curves import Curve, curves_of

NOTHING_IS_WATCHED = "Nothing is watched: there is no report."


class RunReport:
    """The report of a run at the moment at which it was made.

    `str(report)` is the text of `ammeter report`; a notebook displays HTML.

    Attributes:
        findings: what the verdicts found, causes first; each has `finding` with cause, fix and evidence.
        reason: why there is no report; empty if there is one.
    """

    def __init__(self, report: Report | None, curves: Sequence[Curve] = (), reason: str = "") -> None:
        self.findings: Sequence[ReportedFinding] = report.findings if report else ()
        self.reason = reason
        self._report = report
        self._curves = curves

    def as_json(self) -> dict[str, Any]:
        """Returns what `ammeter report --json` prints; empty if there is no report."""
        return self._report.as_json() if self._report else {}

    def __str__(self) -> str:
        if self._report is None:
            return self.reason
        text = io.StringIO()
        terminal.show(self._report, Console(file=text, highlight=False, force_jupyter=False))
        return text.getvalue().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return page.document(self._report, self._curves) if self._report else page.message(self.reason)


def report_of(path: Path | None) -> RunReport:
    """Reads the journal of a run; raises nothing, because training programs call it."""
    if path is None:
        return RunReport(None, reason=NOTHING_IS_WATCHED)
    try:
        report = diagnose(path)
        return RunReport(report, curves_of(report, path))
    except Exception as error:  # noqa: BLE001 - the promise: no fault of ours reaches the training program
        return RunReport(None, reason=f"There is no report: {error}")


def short_html(path: Path | None, title: str) -> str:
    """Returns a run's name, state and findings as HTML, without curves."""
    shown = report_of(path)
    return page.short(shown._report, title) if shown._report else page.message(shown.reason)
