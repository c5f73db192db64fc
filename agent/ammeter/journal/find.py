"""Finds runs on disk and reads their journals as views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ammeter import journal
from ammeter.wire import columns
from ammeter.wire.frames import Bye, Event, Hello, Lost, Schema, Steps

ROWS = 500
"""Rows per read. The value bounds memory; nothing else depends on it."""


class NoJournal(ValueError):
    """The path contains no journal."""


def find_runs(path: Path, every: bool = False) -> list[Path]:
    """Finds the folders of the runs at a path, which may be a stream's folder.

    For a folder of runs, returns the run that started last, or, with `every`, all runs in the order of their start.

    Raises:
        NoJournal: the path is not a folder, or contains no journal.
    """
    if not path.is_dir():
        raise NoJournal(f"{str(path)!r} is no folder; give a run's folder, a stream's, or AMMETER_DIR itself")
    if (path / "alive").exists() or journal.streams(path):
        return [path]
    runs = sorted((each for each in path.iterdir() if each.is_dir() and journal.streams(each)), key=_start)
    if not runs:
        raise NoJournal(
            f"there is no journal in {str(path)!r}; a run that is watched with dir={str(path)!r} writes one"
        )
    return runs if every else runs[-1:]


def find_baseline(name: str, run: Path) -> Path:
    """Finds the folder of the baseline that `name` means.

    The name is a path, a run id or a run name. Ids and names refer to runs in the parent folder of `run`. Of several
    runs with the name, the newest that started no later than `run` is used; if all started later, the newest.

    Raises:
        NoJournal: there is no such run.
    """
    if name and Path(name).is_dir():
        return find_runs(Path(name))[0]
    here = run.resolve().parent if (run / "alive").exists() else run.resolve()
    others = [each for each in here.parent.iterdir() if each.is_dir() and each != here and journal.streams(each)]
    hellos = {each: hello for each in others if (hello := _hello(each))}
    fits = [each for each, hello in hellos.items() if name and name in (each.name, hello.name)]
    if not fits:
        raise NoJournal(
            f"no baseline {name!r} lies beside {run}; give a path, or the id or name of a run in {here.parent}"
        )
    mine = _hello(here)
    earlier = [each for each in fits if mine and hellos[each].started <= mine.started]
    return max(earlier or fits, key=lambda each: hellos[each].started)


def streams_in(path: Path) -> list[Path]:
    """Finds the stream folders at a path. Raises NoJournal if there are none."""
    found = [path] if (path / "alive").exists() else journal.streams(path)
    if not found:
        raise NoJournal(f"there is no journal in {str(path)!r}")
    return found


def hello_of(stream: Path) -> Hello | None:
    """Returns the first hello of a stream."""
    return next((entry.frame for entry in journal.read(stream) if isinstance(entry.frame, Hello)), None)


def views(stream: Path) -> Iterator[columns.View]:
    """Yields the journal as views of at most ROWS rows, each with one schema."""
    schema: Schema | None = None
    rows: list[Steps] = []
    frames: list[tuple[int, Hello | Event | Lost | Bye]] = []
    for entry in journal.read(stream):
        frame = entry.frame
        if isinstance(frame, Steps):
            if schema is None or not columns.fits(frame, schema):
                frames.append((len(rows), Lost("no-schema", steps=1)))
                continue
            rows.append(frame)
        else:
            if isinstance(frame, Hello) and frame.schema != schema:
                yield columns.view(schema or frame.schema, rows, frames)
                schema, rows, frames = frame.schema, [], []
            frames.append((len(rows), frame))
        if len(rows) >= _at_once(schema) or len(frames) >= ROWS:
            yield columns.view(schema or Schema(), rows, frames)
            rows, frames = [], []
    yield columns.view(schema or Schema(), rows, frames)


def _at_once(schema: Schema | None) -> int:
    """Returns the number of rows per read, which is smaller for very wide schemas."""
    return min(ROWS, max(1, columns.MAX_BLOCK_BYTES // (4 * schema.width + 16))) if schema else ROWS


def _start(run: Path) -> tuple[int, float]:
    """Returns (start, last write) of a run, as a sort key.

    The start is that of the earliest first hello among its streams: a file's modification time changes with every later
    write, upload or copy. The last write orders runs without a recorded start.
    """
    streams = journal.streams(run)
    hellos = (journal.schema_before(stream, 0) for stream in streams)
    began = min((hello.started for hello in hellos if hello is not None), default=0)
    return began, max(path.stat().st_mtime for stream in streams for path in (stream, stream / "alive"))


def _hello(run: Path) -> Hello | None:
    """Returns the hello of the run's earliest rank stream."""
    said = [hello for stream in journal.streams(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    return min(said, key=lambda hello: hello.started, default=None)
