"""Compares a run with its baseline, reading both from their journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ammeter import journal
from ammeter.journal.find import NoJournal, find_baseline, hello_of, streams_in, views
from ammeter.verdicts.framework.run_comparison import RunComparison, parse_share
from ammeter.verdicts.framework.run_history import LifeReader, RunHistory, declared_metrics, join_lives


def named_baseline(run: Path) -> str | None:
    """Returns the baseline that the run names in its tags or its config, if any."""
    hellos = [hello for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    names = (hello.tags.get("baseline") or hello.config.get("baseline") for hello in hellos)
    return next((str(name) for name in names if name), None)


def pair(run: Path, baseline: Path, ignored: frozenset[str] = frozenset()) -> RunComparison:
    """Compares two runs folder by folder.

    The tag `validation_delta` of the run limits how much worse its validation may be. `ignored`: settings whose
    difference does not matter.
    """
    metrics = sorted({*metrics_of(run), *metrics_of(baseline)})
    mine, theirs = read(run, metrics), read(baseline, metrics)
    return RunComparison(mine, theirs, ignored, parse_share(mine.tags.get("validation_delta")))


def metrics_of(run: Path) -> list[str]:
    """Returns the validation metrics that a run declares."""
    hellos = (hello for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank")
    return [name for hello in hellos for name in declared_metrics(hello.tags)]


def find(run: Path, name: str | None) -> RunComparison | None:
    """Compares the run with the baseline `name`, else with the baseline that the run names.

    Returns None if no baseline is named, and if the run is itself the baseline. Raises NoJournal if there is no such
    baseline.
    """
    wanted = name or named_baseline(run)
    if not wanted:
        return None
    try:
        return pair(run, find_baseline(wanted, run))
    except NoJournal:
        own = {hello.name for stream in streams_in(run) if (hello := hello_of(stream))} | {run.name}
        if wanted in own:
            return None
        raise


def read(run: Path, metrics: Sequence[str] = ()) -> RunHistory:
    """Returns the history of a run's lowest rank over all attempts.

    Raises NoJournal if no rank has written a journal.
    """
    readings, over, name = attempts(run, metrics)
    return join_lives(readings, over, name=name)


def attempts(run: Path, metrics: Sequence[str] = ()) -> tuple[list[LifeReader], bool, str]:
    """Returns the attempts of a run's lowest rank, oldest first.

    Also returns whether all attempts are over, and the run's name. Raises NoJournal if no rank has written a journal.
    """
    known = [(stream, hello) for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    if not known:
        raise NoJournal(f"{str(run)!r} has no journal of a rank; use the folder of a watched run")
    lowest = min(hello.rank for _, hello in known)
    streams = sorted(((hello.started, stream) for stream, hello in known if hello.rank == lowest))
    readings = []
    for _, stream in streams:
        readings.append(LifeReader(stream.name, metrics))
        for view in views(stream):
            readings[-1].add(view)
    over = not any(journal.is_alive(stream) for _, stream in streams)
    first = min((hello for _, hello in known if hello.rank == lowest), key=lambda hello: hello.started)
    return readings, over, first.name or run.name
