"""Calls a function of the program when a verdict opens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammeter.guards.baseline_comparison import Baseline, BaselineComparison, baseline_for
from ammeter.guards.stream_verdicts import StreamVerdicts
from ammeter.guards.verdict_names import known
from ammeter.redaction import text
from ammeter.verdicts import ALL
from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Frame

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner

log = logging.getLogger("ammeter")

MAX_VERDICTS_PER_ROW = 4
"""Maximum number of verdicts judged at every row.

More verdicts are judged ten times a second, so that they stay within 1 % of the time.
"""

JUDGE_INTERVAL_SECONDS = 0.1
"""Time between two evaluations of more than MAX_VERDICTS_PER_ROW verdicts."""


class OnIncident:
    """Calls callback(finding) in the training thread, at a step boundary, when a verdict opens.

    The finding is the one in the report: verdict, severity, title, cause, fix, evidence, steps. Consequences of an open
    finding are not reported. Up to four verdicts are judged at each row, more, or None for all, ten times a second.
    Training waits for the callback, but never for Ammeter inside it. An exception of the callback is caught, counted in
    `failures` and reported once. baseline: as for Stop; without one, verdicts that compare runs are not part of `None`,
    and naming one raises ValueError in watch().
    """

    name = "on-incident"

    def __init__(
        self,
        callback: Callable[[Finding], Any],
        verdicts: Sequence[str] | None = None,
        baseline: str | Path | None = None,
    ) -> None:
        if not callable(callback):
            raise TypeError(f"callback is a {type(callback).__name__}; use a function that takes a finding")
        self.callback = callback
        self.verdicts = None if verdicts is None else known(verdicts)
        self.failures = 0
        self.baseline = baseline
        self._baseline: Baseline | None = None

    def prepare(self, tags: Mapping[str, Any], root: Path) -> None:
        """Reads the given baseline, else that of the run's tags, from the runs in `root`.

        Raises ValueError if a baseline is needed and does not exist.
        """
        self._baseline = baseline_for(self, self.verdicts or (), self.baseline, tags, root)

    def attach(self, runner: GuardRunner) -> None:
        self._runner = runner
        ids = [verdict.id for verdict in ALL] if self.verdicts is None else self.verdicts
        folder = runner.session.journal.folder
        comparison = None if self._baseline is None else BaselineComparison(self._baseline, ids, folder)
        interval_seconds = 0.0 if len(ids) <= MAX_VERDICTS_PER_ROW else JUDGE_INTERVAL_SECONDS
        self._stream_verdicts = StreamVerdicts(ids, interval_seconds, comparison=comparison)

    def receive_frames(self, frames: Sequence[Frame], last: bool = False) -> None:
        new = {finding.verdict for finding in self._stream_verdicts.judge(frames, last=last)}
        if new:
            causes = explain([("", finding) for finding in self._stream_verdicts.findings.values()])
            for cause in causes:
                if cause.finding.verdict in new:
                    self._call(cause.finding)

    def _call(self, finding: Finding) -> None:
        try:
            self.callback(finding)
        except Exception as error:  # noqa: BLE001 - code of the program; the run goes on
            self.failures += 1
            if self.failures == 1:
                self._report(finding, error)

    def _report(self, finding: Finding, error: Exception) -> None:
        with suppress(Exception):  # an exception without text, or a log handler of the program that raises
            message = text(f"{type(error).__name__}: {error}", 500)
            self._runner.emit(self, "callback raised", message, verdict=finding.verdict)
            log.warning("ammeter: the callback for %s raised (%s); training continues", finding.verdict, message)
