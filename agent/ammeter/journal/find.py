"""Finds runs on disk and reads their journals as views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ammeter import journal
from ammeter.wire import columns
from ammeter.wire.frames import Bye, Event, Frame, Hello, Lost, Schema, Steps

MAX_ROWS = 500
"""Rows per view. The value bounds memory; nothing else depends on it."""


MAX_EXAMPLES = 5
"""Runs that the error about an ambiguous name lists: enough to see in what they differ."""


class NoJournal(ValueError):
    """The path contains no journal."""


def find_runs(path: Path, every: bool = False) -> list[Path]:
    """Finds the folders of the runs at a path, which may be a stream's folder.

    For a folder of runs, returns the run that started last, or, with `every`, all runs in the order of their start.

    Raises:
        NoJournal: the path is not a folder, or contains no journal.
    """
    if not path.is_dir():
        raise NoJournal(f"{str(path)!r} is not a folder; pass the journal that `ammeter run` prints, or AMMETER_DIR")
    if (path / "alive").exists() or journal.streams(path):
        return [path]
    runs = sorted((run for run in path.iterdir() if run.is_dir() and journal.streams(run)), key=_start)
    if not runs:
        raise NoJournal(
            f"there is no journal in {str(path)!r}; a run that is watched with dir={str(path)!r} writes one"
        )
    return runs if every else runs[-1:]


def find_run(name: str, folder: Path) -> Path:
    """Finds the folder of the run that `name` means: a path as for find_runs, or the id or name of a run in `folder`.

    Of several runs with the name, the one that started last is used. The beginning of an id or name suffices if no
    other run has it.

    Raises:
        NoJournal: there is no such run, or several begin so.
    """
    if name and Path(name).is_dir():
        return find_runs(Path(name))[0]
    if named := _named(name, folder):
        return max(named, key=lambda run: named[run].started)
    begun = _named(name, folder, is_beginning=True)
    if len(begun) > 1:
        examples = ", ".join(sorted(f"{hello.name} ({run.name})" for run, hello in begun.items())[:MAX_EXAMPLES])
        raise NoJournal(f"{len(begun)} runs in {folder} begin with {name!r}: {examples}; write more of one of them")
    if begun:
        return next(iter(begun))
    raise NoJournal(f"there is no run {name!r} in {folder}; pass its folder, or the id or name of a run there")


def find_group(selector: str, folder: Path) -> list[Path]:
    """Finds the folders of all runs that the selector means, the oldest first.

    The selector is the path of a run, the id or name of runs in `folder`, or a tag such as `recipe=bf16`.

    Raises:
        NoJournal: there is no such run.
    """
    if selector and Path(selector).is_dir():
        return find_runs(Path(selector))
    hellos = _named(selector, folder) or _tagged(selector, folder)
    if not hellos:
        raise NoJournal(
            f"there is no run {selector!r} in {folder}; pass its folder, the id or name of a run there, or a tag"
            " such as recipe=bf16"
        )
    return sorted(hellos, key=lambda run: hellos[run].started)


def find_baseline(name: str, run: Path) -> Path:
    """Finds the folder of the baseline that `name` means.

    The name is a path, a run id or a run name. Ids and names refer to runs in the parent folder of `run`. Of several
    runs with the name, the newest that started no later than `run` is used; if all started later, the newest.

    Raises:
        NoJournal: there is no such run.
    """
    if name and Path(name).is_dir():
        return find_runs(Path(name))[0]
    run_folder = run.resolve().parent if (run / "alive").exists() else run.resolve()
    parent = run_folder.parent
    candidates = {other: hello for other, hello in _named(name, parent).items() if other != run_folder}
    if not candidates:
        raise NoJournal(
            f"there is no baseline {name!r} in {parent}; pass a path, or the id or name of another run there"
        )
    own_hello = _hello(run_folder)
    earlier = [other for other in candidates if own_hello and candidates[other].started <= own_hello.started]
    return max(earlier or candidates, key=lambda other: candidates[other].started)


def streams_in(path: Path) -> list[Path]:
    """Finds the stream folders at a path. Raises NoJournal if there are none."""
    streams = [path] if (path / "alive").exists() else journal.streams(path)
    if not streams:
        raise NoJournal(f"there is no journal in {str(path)!r}")
    return streams


def hello_of(stream: Path) -> Hello | None:
    """Returns the first hello of a stream."""
    return next((entry.frame for entry in journal.read(stream) if isinstance(entry.frame, Hello)), None)


def views(stream: Path) -> Iterator[columns.View]:
    """Yields the journal as views of at most MAX_ROWS rows, each with one schema.

    The last rows are the completed steps that the writer has not written yet.
    """
    schema: Schema | None = None
    rows: list[Steps] = []
    frames: list[tuple[int, Hello | Event | Lost | Bye]] = []
    for frame in _frames(stream):
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
        if len(rows) >= _max_rows(schema) or len(frames) >= MAX_ROWS:
            yield columns.view(schema or Schema(), rows, frames)
            rows, frames = [], []
    yield columns.view(schema or Schema(), rows, frames)


def _frames(stream: Path) -> Iterator[Frame]:
    """Yields the frames of a journal, then the completed steps that it lacks."""
    completed = journal.unwritten_steps(stream)  # before the journal, so that no step is missing between the two
    schema, last_step, frame = None, -1, None
    for entry in journal.read(stream):
        frame = entry.frame
        if isinstance(frame, Steps):
            last_step = frame.step
        elif isinstance(frame, Hello):
            schema = frame.schema
        yield frame
    if schema is not None and not isinstance(frame, Bye):
        yield from (step.frame(schema) for step in completed if step.step > last_step)


def _max_rows(schema: Schema | None) -> int:
    """Returns the number of rows per view, which is smaller for very wide schemas."""
    return min(MAX_ROWS, max(1, columns.MAX_BLOCK_BYTES // (4 * schema.width + 16))) if schema else MAX_ROWS


def _start(run: Path) -> tuple[int, float]:
    """Returns (start, last write) of a run, as a sort key.

    The start is that of the earliest first hello among its streams: a file's modification time changes with every later
    write, upload or copy. The last write orders runs without a recorded start.
    """
    streams = journal.streams(run)
    hellos = (journal.schema_before(stream, 0) for stream in streams)
    started = min((hello.started for hello in hellos if hello is not None), default=0)
    return started, max(path.stat().st_mtime for stream in streams for path in (stream, stream / "alive"))


def _named(name: str, folder: Path, is_beginning: bool = False) -> dict[Path, Hello]:
    """Returns the runs of a folder with this id or name, or its beginning, each with its earliest rank's hello."""
    if not name:
        return {}
    hellos = _hellos(folder)
    if is_beginning:
        return {
            run: hello for run, hello in hellos.items() if (run.name.startswith(name) or hello.name.startswith(name))
        }
    return {run: hello for run, hello in hellos.items() if name in (run.name, hello.name)}


def _tagged(selector: str, folder: Path) -> dict[Path, Hello]:
    key, equals, value = selector.partition("=")
    return {run: hello for run, hello in _hellos(folder).items() if equals and str(hello.tags.get(key)) == value}


def _hellos(folder: Path) -> dict[Path, Hello]:
    runs = [run for run in folder.iterdir() if run.is_dir() and journal.streams(run)] if folder.is_dir() else []
    return {run: hello for run in runs if (hello := _hello(run))}


def _hello(run: Path) -> Hello | None:
    """Returns the hello of the run's earliest rank stream."""
    hellos = [hello for stream in journal.streams(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    return min(hellos, key=lambda hello: hello.started, default=None)
