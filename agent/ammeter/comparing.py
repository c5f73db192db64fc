"""A run beside its baseline, read from their journals."""

from __future__ import annotations

from pathlib import Path

from ammeter import journal
from ammeter.folders import NoJournal, find_baseline, hello_of, streams_in, views
from ammeter.verdicts.course import Course, Reading
from ammeter.verdicts.pair import Pair, agreed


def named_baseline(run: Path) -> str | None:
    """The run that this one says it is to be compared with, by tag or in its config."""
    hellos = [hello for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    said = [each.tags.get("baseline") or each.config.get("baseline") for each in hellos]
    return next((str(each) for each in said if each), None)


def pair(run: Path, baseline: Path, ignored: frozenset[str] = frozenset()) -> Pair:
    """Both as they lie there. The tag `validation_delta` of the run says by how much its validation may be worse."""
    read, other = _read(run), _read(baseline)
    return Pair(read[0], other[0], ignored, agreed(read[1]))


def find(run: Path, name: str | None) -> Pair | None:
    """The run beside the baseline of this name, else beside the one that it names itself; None where it names none, and
    for the baseline itself.

    Raises NoJournal where there is no such baseline.
    """
    asked = name or named_baseline(run)
    if not asked:
        return None
    try:
        return pair(run, find_baseline(asked, run))
    except NoJournal:
        own = {hello.name for stream in streams_in(run) if (hello := hello_of(stream))} | {run.name}
        if asked in own:
            return None
        raise


def _read(run: Path) -> tuple[Course, str | None]:
    """The course of a run's lowest rank in its first life, and the validation delta it was tagged with."""
    known = [(stream, hello) for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    if not known:
        raise NoJournal(f"no rank has written into {str(run)!r}; a run that is watched does")
    stream, hello = min(known, key=lambda each: (each[1].rank, each[1].started))
    reading = Reading()
    for view in views(stream):
        reading.add(view)
    over = not journal.is_alive(stream)
    return reading.course(over, name=hello.name or run.name), hello.tags.get("validation_delta")
