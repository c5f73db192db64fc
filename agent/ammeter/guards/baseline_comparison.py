"""Evaluates the verdicts that compare a run with its baseline, in the training process.

The journal of the baseline is read once, in watch(), and the run's rows as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from ammeter import verdicts
from ammeter.guards.verdict_names import USABLE, needs_baseline
from ammeter.journal.find import NoJournal, find_baseline
from ammeter.report import baseline
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.run_comparison import RunComparison, parse_share
from ammeter.verdicts.framework.run_history import LifeReader, RunHistory, declared_metrics, join_lives
from ammeter.wire.columns import View, measured

MAX_TIME_SHARE = 0.002
"""Maximum share of time for comparisons between validations.

Their cost grows with the length of the run.
"""

MIN_INTERVAL_SECONDS = 1.0
"""Minimum time between two comparisons that no validation triggers."""

NEW_RUN = "new run"
"""Name of a folder that no run can have. find_baseline() searches in its parent."""


@dataclass(frozen=True)
class Baseline:
    """A baseline's history and the validation metrics that are compared."""

    history: RunHistory
    metrics: tuple[str, ...]


class BaselineComparison:
    """Compares a run with its baseline. A verdict that raises is not evaluated again.

    Args:
        stream: the folder of the run's journal; the journals of earlier attempts are in the same folder.
    """

    def __init__(
        self,
        baseline: Baseline,
        ids: Collection[str],
        stream: Path | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._baseline = baseline.history
        self._verdicts = [verdict for verdict in verdicts.BASELINE_VERDICTS if verdict.id in ids]
        self._earlier = _earlier(stream, baseline.metrics) if stream is not None else []
        self._reading = LifeReader(stream.name if stream is not None else "", baseline.metrics)
        self._metrics = baseline.metrics
        self._clock = clock
        self._due, self._validated = clock() + MIN_INTERVAL_SECONDS, False

    def add(self, view: View) -> None:
        self._reading.add(view)
        self._reading.compact()
        logged = any(getattr(frame, "name", "") == "values.logged" for _, frame in view.frames)
        read = any(bool(measured(view.scalar(baseline_name)).any()) for baseline_name in self._metrics)
        self._validated = self._validated or logged or read

    def judge(self, *, last: bool = False) -> list[Finding]:
        """Returns the current findings if data is new or a comparison is due, else nothing."""
        began = self._clock()
        if not (last or self._validated or began >= self._due):
            return []
        self._validated = False
        findings = list(self._findings())
        seconds = self._clock() - began
        self._due = began + max(MIN_INTERVAL_SECONDS, seconds / MAX_TIME_SHARE)
        return findings

    def _findings(self) -> Sequence[Finding]:
        mine = join_lives([*self._earlier, self._reading], over=False)
        comparison = RunComparison(mine, self._baseline, frozenset(), parse_share(mine.tags.get("validation_delta")))
        findings: list[Finding] = []
        for verdict in list(self._verdicts):
            try:
                _, finding = verdict.runs(verdict.state(), comparison)
            except Exception:  # noqa: BLE001 - reported by the collector; the other verdicts continue
                self._verdicts.remove(verdict)
                continue
            findings += [finding] if finding is not None else []
        return findings


def _earlier(stream: Path, metrics: Sequence[str]) -> list[LifeReader]:
    """Returns the earlier attempts of this run, from its lowest rank."""
    try:
        readings, _, _ = baseline.attempts(stream.parent, metrics)
    except (NoJournal, OSError):  # unreadable: the comparison starts with this attempt
        return []
    return [reading for reading in readings if reading.stream != stream.name]


def baseline_for(
    guard: Any, ids: Sequence[str], named: str | Path | None, tags: Mapping[str, Any], root: Path
) -> Baseline | None:
    """Returns the baseline that a guard needs or was given, else None.

    Raises ValueError if a needed baseline does not exist, or if a given one is not needed.
    """
    needing = needs_baseline(ids)
    baseline_name = str(named or tags.get("baseline") or "")
    if not needing and named is None:
        return None
    if not baseline_name:
        raise ValueError(
            f"{type(guard).__name__} acts on {needing[0]!r}, which compares the run with a baseline, and no baseline is"
            f" named; use {type(guard).__name__}(..., baseline='fp32-monday'), watch(..., tags={{'baseline': ...}}), or"
            f" verdicts that need none: {', '.join(USABLE)}"
        )
    try:
        return _baseline(baseline_name, root, declared_metrics(tags))
    except (NoJournal, OSError) as error:
        raise ValueError(
            f"{type(guard).__name__} acts on {', '.join(map(repr, needing)) or 'a baseline'}, and the journal of the"
            f" baseline cannot be read: {error}"
        ) from error


def _baseline(baseline_name: str, root: Path, metrics: Collection[str]) -> Baseline:
    """Reads a baseline by path, id or name; a name means the newest run.

    Ids and names are searched in `root`.

    Raises NoJournal if there is none.
    """
    if not root.is_dir() and not Path(baseline_name).is_dir():
        raise NoJournal(
            f"{root} has no baseline {baseline_name!r}; use a path, or the id or name of a run in that folder"
        )
    folder = find_baseline(baseline_name, root / NEW_RUN)
    metrics_read = tuple(sorted({*metrics, *baseline.metrics_of(folder)}))
    return Baseline(baseline.read(folder, metrics_read), metrics_read)
