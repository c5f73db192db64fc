"""Evaluates verdicts on the frames of a stream as they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import Any

from ammeter import verdicts
from ammeter.guards.baseline_comparison import BaselineComparison
from ammeter.verdicts.framework.finding import Finding, no_op
from ammeter.wire import columns
from ammeter.wire.frames import Bye, Event, Frame, Hello, Lost, Schema, Steps


class StreamVerdicts:
    """Runs selected verdicts over one stream, with the code of report and collector.

    Args:
        interval_seconds: time for which frames are collected, so that many verdicts cost little.
        comparison: comparison with a baseline, if requested.
    """

    def __init__(
        self,
        ids: Collection[str],
        interval_seconds: float = 0.0,
        clock: Callable[[], float] = monotonic,
        comparison: BaselineComparison | None = None,
    ) -> None:
        self._all = [verdict for verdict in verdicts.ALL if verdict.id in ids]
        self._verdicts = [verdict for verdict in self._all if verdict.judge is not no_op]
        self._states: dict[str, Any] = {verdict.id: verdict.state() for verdict in self._verdicts}
        self._comparison = comparison
        self._schema: Schema | None = None
        self._pending: list[Frame] = []
        self._interval_seconds, self._clock, self._judged = interval_seconds, clock, clock()
        self._opened: dict[str, int] = {}
        self.findings: dict[str, Finding] = {}

    def judge(self, frames: Sequence[Frame], *, last: bool = False) -> list[Finding]:
        """Returns the findings that open with these frames, causes first.

        Args:
            last: judge collected frames now.
        """
        self._pending.extend(frames)
        if not last and self._clock() - self._judged < self._interval_seconds:
            return []
        self._judged = self._clock()
        pending, self._pending = self._pending, []
        for view in self._views(pending):
            self._judge(view)
            if self._comparison is not None:
                self._comparison.add(view)
        if self._comparison is not None:
            for finding in self._comparison.judge(last=last):
                self.findings.setdefault(finding.verdict, finding)
        findings = (self.findings[verdict.id] for verdict in self._all if verdict.id in self.findings)
        new = [item for item in findings if item.active and item.times > self._opened.get(item.verdict, 0)]
        self._opened |= {finding.verdict: finding.times for finding in new}
        return new

    def _judge(self, view: columns.View) -> None:
        """Evaluates the verdicts. One that raises is not evaluated again, as in verdicts.judge."""
        for verdict in list(self._verdicts):
            try:
                self._states[verdict.id], finding = verdict.judge(self._states[verdict.id], view)
            except Exception:  # noqa: BLE001 - reported by the collector; the other verdicts continue
                self._verdicts.remove(verdict)
                continue
            if finding is not None:
                self.findings[verdict.id] = finding

    def _views(self, frames: Sequence[Frame]) -> Iterator[columns.View]:
        """Converts frames to views, each with one schema."""
        rows: list[Steps] = []
        others: list[tuple[int, Hello | Event | Lost | Bye]] = []
        for frame in frames:
            if isinstance(frame, Steps):
                if self._schema is not None and columns.fits(frame, self._schema):
                    rows.append(frame)
                continue
            if isinstance(frame, Hello) and frame.schema != self._schema:
                if self._schema is not None:
                    yield columns.view(self._schema, rows, others)
                self._schema, rows, others = frame.schema, [], []
            others.append((len(rows), frame))
        if rows or others:
            yield columns.view(self._schema or Schema(), rows, others)
