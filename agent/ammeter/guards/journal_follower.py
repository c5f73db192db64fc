"""Judges the frames of a run's journal for guards as they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import Any

from ammeter import verdicts
from ammeter.guards.baseline_verdicts import Beside
from ammeter.journal import Journal
from ammeter.verdicts.framework.finding import Finding, no_op
from ammeter.wire import columns
from ammeter.wire.frames import Bye, Event, Frame, Hello, Lost, Schema, Steps


class Overheard(Journal):
    """A journal that also keeps written frames until take(), so guards judge the report's data."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._frames: list[Frame] = []
        super().__init__(*args, **options)

    def hello(self, hello: Hello) -> None:
        super().hello(hello)
        self._frames.append(hello)

    def append(self, *frames: Frame) -> bool:
        self._frames.extend(frames)
        return super().append(*frames)

    @property
    def waiting(self) -> bool:
        return bool(self._frames)

    def take(self) -> list[Frame]:
        """Returns the frames written since the last call."""
        taken, self._frames = self._frames, []
        return taken


class Judging:
    """Runs selected verdicts over one stream, with the code of report and collector.

    patience: seconds for which frames may be collected, so that many verdicts cost little. beside: comparison with a
    baseline, if requested.
    """

    def __init__(
        self,
        ids: Collection[str],
        patience: float = 0.0,
        clock: Callable[[], float] = monotonic,
        beside: Beside | None = None,
    ) -> None:
        self._all = [verdict for verdict in verdicts.ALL if verdict.id in ids]
        self._verdicts = [verdict for verdict in self._all if verdict.judge is not no_op]
        self._states: dict[str, Any] = {verdict.id: verdict.state() for verdict in self._verdicts}
        self._beside = beside
        self._schema: Schema | None = None
        self._waiting: list[Frame] = []
        self._patience, self._clock, self._judged = patience, clock, clock()
        self._opened: dict[str, int] = {}
        self.findings: dict[str, Finding] = {}

    def hear(self, frames: Sequence[Frame], *, last: bool = False) -> list[Finding]:
        """Returns the findings that open with these frames, causes first.

        last: judge waiting frames now.
        """
        self._waiting.extend(frames)
        if not last and self._clock() - self._judged < self._patience:
            return []
        self._judged = self._clock()
        waiting, self._waiting = self._waiting, []
        for view in self._views(waiting):
            self._judge(view)
            if self._beside is not None:
                self._beside.add(view)
        if self._beside is not None:
            for finding in self._beside.judge(last=last):
                self.findings.setdefault(finding.verdict, finding)
        found = [self.findings[verdict.id] for verdict in self._all if verdict.id in self.findings]
        new = [finding for finding in found if finding.active and finding.times > self._opened.get(finding.verdict, 0)]
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
