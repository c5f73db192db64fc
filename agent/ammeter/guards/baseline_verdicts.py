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
from ammeter.guards.verdict_names import REACHED, needs_baseline
from ammeter.journal.find import NoJournal, find_baseline
from ammeter.report import baseline
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.run_comparison import RunComparison, parse_share
from ammeter.verdicts.framework.run_history import LifeReader, RunHistory, declared_metrics, join_lives
from ammeter.wire.columns import View, measured

SHARE = 0.002
"""Maximum share of time for comparisons between validations.

Their cost grows with the length of the run.
"""

MIN_SECONDS = 1.0
"""Minimum time between two comparisons that no validation triggers."""

NEW = "new run"
"""Name of a folder that no run can have. find_baseline() searches beside it."""


@dataclass(frozen=True)
class Held:
    """A baseline's history and the validation metrics that are compared."""

    course: RunHistory
    metrics: tuple[str, ...]


class Beside:
    """Compares a run with its baseline. A verdict that raises is not evaluated again.

    stream: the folder of the run's journal; the journals of earlier attempts are beside it.
    """

    def __init__(
        self, held: Held, ids: Collection[str], stream: Path | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._baseline = held.course
        self._verdicts = [verdict for verdict in verdicts.BASELINE_VERDICTS if verdict.id in ids]
        self._earlier = _earlier(stream, held.metrics) if stream is not None else []
        self._reading = LifeReader(stream.name if stream is not None else "", held.metrics)
        self._metrics = held.metrics
        self._clock = clock
        self._due, self._validated = clock() + MIN_SECONDS, False

    def add(self, view: View) -> None:
        self._reading.add(view)
        self._reading.compact()
        logged = any(getattr(frame, "name", "") == "values.logged" for _, frame in view.frames)
        read = any(bool(measured(view.scalar(name)).any()) for name in self._metrics)
        self._validated = self._validated or logged or read

    def judge(self, *, last: bool = False) -> list[Finding]:
        """Returns the current findings if data is new or a comparison is due, else nothing."""
        began = self._clock()
        if not (last or self._validated or began >= self._due):
            return []
        self._validated = False
        found = list(self._found())
        took = self._clock() - began
        self._due = began + max(MIN_SECONDS, took / SHARE)
        return found

    def _found(self) -> Sequence[Finding]:
        mine = join_lives([*self._earlier, self._reading], over=False)
        pair = RunComparison(mine, self._baseline, frozenset(), parse_share(mine.tags.get("validation_delta")))
        found: list[Finding] = []
        for verdict in list(self._verdicts):
            try:
                _, finding = verdict.runs(verdict.state(), pair)
            except Exception:  # noqa: BLE001 - reported by the collector; the other verdicts continue
                self._verdicts.remove(verdict)
                continue
            found += [finding] if finding is not None else []
        return found


def _earlier(stream: Path, metrics: Sequence[str]) -> list[LifeReader]:
    """Returns the earlier attempts of this run, from its lowest rank."""
    try:
        found, _, _ = baseline.lives(stream.parent, metrics)
    except (NoJournal, OSError):  # unreadable: the comparison starts with this attempt
        return []
    return [reading for reading in found if reading.stream != stream.name]


def held_for(
    guard: Any, ids: Sequence[str], given: str | Path | None, tags: Mapping[str, Any], root: Path
) -> Held | None:
    """Returns the baseline that a guard needs or was given, else None.

    Raises ValueError if a needed baseline does not exist, or if a given one is not needed.
    """
    asked = needs_baseline(ids)
    name = str(given or tags.get("baseline") or "")
    if not asked and given is None:
        return None
    if not name:
        raise ValueError(
            f"{type(guard).__name__} is to act on {asked[0]!r}, which holds the run against a baseline, and none is"
            f" named; use {type(guard).__name__}(..., baseline='fp32-monday'), watch(..., tags={{'baseline': ...}}), or"
            f" verdicts that need none: {', '.join(REACHED)}"
        )
    try:
        return _held(name, root, declared_metrics(tags))
    except (NoJournal, OSError) as error:
        raise ValueError(
            f"{type(guard).__name__} is to act on {', '.join(map(repr, asked)) or 'a baseline'}, and the journal of the"
            f" baseline is not at hand: {error}"
        ) from error


def _held(name: str, root: Path, metrics: Collection[str]) -> Held:
    """Reads a baseline by path, id or name; a name means the newest run.

    Ids and names are searched in `root`.

    Raises NoJournal if there is none.
    """
    if not root.is_dir() and not Path(name).is_dir():
        raise NoJournal(f"no baseline {name!r} lies in {root}; give a path, or the id or name of a run there")
    found = find_baseline(name, root / NEW)
    wanted = tuple(sorted({*metrics, *baseline.metrics_of(found)}))
    return Held(baseline.read(found, wanted), wanted)
