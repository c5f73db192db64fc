"""Calls a function of the program when a verdict opens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammeter.guards import baseline_verdicts
from ammeter.guards.journal_follower import Judging
from ammeter.guards.verdict_names import known
from ammeter.redaction import text
from ammeter.verdicts import ALL
from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Frame

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner

log = logging.getLogger("ammeter")

FEW = 4
"""Maximum number of verdicts judged at every row.

More verdicts are judged ten times a second, so that they stay within 1 % of the time.
"""

PATIENCE = 0.1


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
        self._held: baseline_verdicts.Held | None = None

    def prepare(self, tags: Mapping[str, Any], root: Path) -> None:
        """Reads the given baseline, else that of the run's tags, from the runs in `root`.

        Raises ValueError if a baseline is needed and does not exist.
        """
        self._held = baseline_verdicts.held_for(self, self.verdicts or (), self.baseline, tags, root)

    def attach(self, duty: GuardRunner) -> None:
        self._duty = duty
        ids = [verdict.id for verdict in ALL] if self.verdicts is None else self.verdicts
        folder = duty.session.journal.folder
        compared = baseline_verdicts.Beside(self._held, ids, folder) if self._held is not None else None
        self._judging = Judging(ids, 0.0 if len(ids) <= FEW else PATIENCE, beside=compared)

    def heard(self, frames: Sequence[Frame], last: bool = False) -> None:
        new = {finding.verdict for finding in self._judging.hear(frames, last=last)}
        if new:
            causes = explain([("", finding) for finding in self._judging.findings.values()])
            for cause in causes:
                if cause.finding.verdict in new:
                    self._call(cause.finding)

    def _call(self, finding: Finding) -> None:
        try:
            self.callback(finding)
        except Exception as error:  # noqa: BLE001 - code of the program; the run goes on
            self.failures += 1
            if self.failures == 1:
                self._tell(finding, error)

    def _tell(self, finding: Finding, error: Exception) -> None:
        with suppress(Exception):  # an exception without text, or a log handler of the program that raises
            said = text(f"{type(error).__name__}: {error}", 500)
            self._duty.tell(self, "callback raised", said, verdict=finding.verdict)
            log.warning("ammeter: the callback for %s raised (%s); training goes on", finding.verdict, said)
