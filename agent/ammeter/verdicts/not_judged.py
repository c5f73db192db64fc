"""Finds the verdicts that could not be reached in a run, because too little was read.

Pure. The report, the API, the web page and /metrics use the same function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from ammeter.counters import readings as counted_readings
from ammeter.verdicts import ALL, STREAM_VERDICTS
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Verdict
from ammeter.verdicts.framework.readings import NOUNS, Readings, facts_of

MAX_CACHED_STREAMS = 4096
"""Streams whose unmet needs are kept, about 2 KiB each: a list of runs asks again for streams that rarely change."""

Reason = Literal["run-too-short", "budget", "never-read", "not-in-history"]

REASONS: dict[Reason, str] = {
    "run-too-short": "the run is too short",
    "budget": "the budget allows too few readings; a higher AMMETER_BUDGET allows more",
    "never-read": "nothing was read; the preset, the model or the program leaves it out",
    "not-in-history": "the imported history does not have what they read",
}

FIRST_READING_STEPS = 64
"""Steps in which every reading that a preset makes occurs at least once: the first one needs no budget."""


TIMED = ("device_utilization",)
"""Columns that are read at intervals of time, whatever the budget."""


@dataclass(frozen=True)
class NotJudged:
    """A verdict that too few readings leave open.

    Attributes:
        column: The column or event that was read too rarely.
        read: Readings so far.
        needed: Readings that a run of this length needs.
        within: Steps in which the first of them are needed; 0 for any number.
        text: `read` of `needed`, in words.
    """

    verdict: str
    reason: Reason
    column: str
    read: int
    needed: int
    within: int
    text: str


@dataclass(frozen=True)
class _Unmet:
    """A need that a stream does not meet."""

    need: Readings
    read: int
    needed: int
    steps: int
    history: bool = False

    @property
    def share(self) -> float:
        return self.read / self.needed

    @property
    def reason(self) -> Reason:
        if self.history:
            return "not-in-history"
        if not self.read and self.steps >= FIRST_READING_STEPS and self.need.column != "applied":
            return "never-read"
        if self.need.column in TIMED:
            return "run-too-short"
        return "run-too-short" if self.steps < max(self.need.within, self.need.count) else "budget"


StreamCounters = tuple[Mapping[str, Any], str | None]
"""Counters and precision of one rank's stream."""


def not_judged(streams: Iterable[StreamCounters], reached: Collection[str] = ()) -> list[NotJudged]:
    """Returns the verdicts that no stream of a run could judge, in the order of the verdicts.

    A verdict that does not apply, such as one on float16 in a bfloat16 run, is not among them. Neither is one with a
    finding, whatever was read.

    Args:
        streams: Those of the ranks. Streams of versions that did not count their readings are ignored.
        reached: Verdicts with a finding.
    """
    unmet = _unmet_in_all(streams, reached)
    return [_described(verdict, unmet[verdict.id]) for verdict in ALL if verdict.id in unmet] if unmet else []


def count_not_judged(streams: Iterable[StreamCounters], reached: Collection[str] = ()) -> int:
    """Returns the number of these verdicts."""
    return len(_unmet_in_all(streams, reached))


def _unmet_in_all(streams: Iterable[StreamCounters], reached: Collection[str]) -> dict[str, _Unmet]:
    """Returns verdict -> its unmet need of the largest share, if each stream to which it applies has one."""
    unmet: dict[str, _Unmet] = {}
    met = set(reached)
    for counters, precision in streams:
        readings = counted_readings.of(counters)
        if readings is None or not counters.get("steps"):
            continue
        for verdict, need in _unmet_needs(tuple(readings.items()), counters["steps"], precision).items():
            if need is None:
                met.add(verdict)
            elif verdict not in unmet or need.share > unmet[verdict].share:
                unmet[verdict] = need
    return {verdict: need for verdict, need in unmet.items() if verdict not in met}


def sentences(open_verdicts: Sequence[NotJudged]) -> list[str]:
    """Returns one sentence per reason, with the verdicts and their readings."""
    lines = []
    for reason, text in REASONS.items():
        found = [entry for entry in open_verdicts if entry.reason == reason]
        entries = [f"{entry.verdict} ({entry.text})" for entry in found]
        if reason == "not-in-history" and found:
            lines.append(f"Not judged, because {text}: {wording.count(len(found), 'verdict')}; --json names them.")
        elif entries:
            lines.append(f"Not judged, too few readings ({text}): {', '.join(entries)}.")
    return lines


@lru_cache(MAX_CACHED_STREAMS)
def _unmet_needs(
    readings: tuple[tuple[str, int], ...], steps: int, precision: str | None
) -> Mapping[str, _Unmet | None]:
    """Returns verdict -> unmet need of a stream, or None if all are met, for the verdicts that apply to the stream."""
    counts = dict(readings)
    if counted_readings.HISTORY in counts:
        return {verdict.id: _unmet_in_history(verdict, counts, steps) for verdict in STREAM_VERDICTS}
    facts = facts_of(counts, precision)
    return {verdict.id: _unmet(verdict, counts, steps) for verdict in VERDICTS if verdict.applies(facts)}


def _unmet(verdict: Verdict, readings: Mapping[str, int], steps: int) -> _Unmet | None:
    """Returns the need of which the smallest share is met; None if all are met."""
    unmet = [
        _Unmet(need, read, needed, steps)
        for need in verdict.needs
        if (read := readings.get(need.column, 0)) < (needed := need.needed(steps))
    ]
    return min(unmet, key=lambda entry: entry.share, default=None)


def _unmet_in_history(verdict: Verdict, readings: Mapping[str, int], steps: int) -> _Unmet | None:
    """Returns the column that an imported history lacks, or the need that it does not meet; None if all are met."""
    missing = [column for column in verdict.history if not readings.get(column)]
    if missing or not verdict.history:
        column = (*missing, *verdict.columns, *verdict.events, "")[0]
        return _Unmet(Readings(column, 1), 0, 1, steps, history=True)
    return _unmet(verdict, readings, steps)


def _described(verdict: Verdict, unmet: _Unmet) -> NotJudged:
    noun = NOUNS.get(unmet.need.column, "reading")
    text = "not in the history" if unmet.history else f"{unmet.read} of {wording.count(unmet.needed, noun)}"
    return NotJudged(verdict.id, unmet.reason, unmet.need.column, unmet.read, unmet.needed, unmet.need.within, text)


VERDICTS = tuple(verdict for verdict in ALL if verdict.needs)
