"""A run as frames and exporters read it: its streams, its signals, and its rows with late values at their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ammeter import journal
from ammeter.journal.find import streams_in, views
from ammeter.recorded.scan import Scan, scan
from ammeter.recorded.signal_names import Signal, signals_of
from ammeter.verdicts.framework import wording
from ammeter.wire.columns import ABSENT, Floats, Ints, Mask, View, measured
from ammeter.wire.frames import Event, Hello


class NoRows(ValueError):
    """The run has no rows, or does not have them any longer."""


@dataclass(frozen=True)
class Stream:
    """What one process wrote: a rank in one attempt, or the devices of a host.

    Attributes:
        prefix: Distinguishes its series from those of other streams, such as `rank_1/attempt_2/`; empty for the only
            stream of a rank.
    """

    folder: Path
    hello: Hello
    scan: Scan
    prefix: str

    @property
    def rank(self) -> int | None:
        """None for the devices of a host."""
        return self.hello.rank if self.hello.role == "rank" else None

    @property
    def is_alive(self) -> bool:
        """Whether the process may still write."""
        return self.scan.ended is None and journal.is_alive(self.folder)


@dataclass(frozen=True)
class Section:
    """Rows of one stream, and the columns of the signals that are measured in any of them."""

    stream: Stream
    steps: Ints
    times: Ints
    columns: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def masks(self) -> dict[str, Mask]:
        """bool[n] of each column: where a value was measured."""
        return {name: measured(column) for name, column in self.columns.items()}

    @property
    def values(self) -> int:
        """Number of measured values."""
        return sum(int(np.count_nonzero(mask)) for mask in self.masks.values())

    def records(self) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Yields (step, time in ns, measured values by signal) of each row; float32 becomes float, exactly."""
        columns = [(name, column.tolist(), self.masks[name].tolist()) for name, column in self.columns.items()]
        for row, (step, time) in enumerate(zip(self.steps.tolist(), self.times.tolist(), strict=True)):
            yield step, time, {name: column[row] for name, column, mask in columns if mask[row]}


@dataclass(frozen=True)
class RecordedRun:
    """A run's folder as it was when load() read it.

    Attributes:
        signals: The signals that are measured anywhere in the run, by name.
    """

    path: Path
    streams: Sequence[Stream]
    signals: Mapping[str, Signal]

    @property
    def hello(self) -> Hello:
        """The first hello of the rank that started first; it has the run's name and settings."""
        return min((stream.hello for stream in self.streams), key=lambda hello: (hello.role == "host", hello.started))

    @property
    def rows(self) -> int:
        return sum(stream.scan.rows for stream in self.streams)

    @property
    def sections(self) -> int:
        """Number of sections that read() yields at most."""
        return sum(stream.scan.sections + bool(stream.scan.late) for stream in self.streams)

    def read(self, stream: Stream) -> Iterator[Section]:
        """Yields the rows of a stream in order, up to the last one that load() saw.

        Values that run.log set for a row already written are in that row. If the row is lost, they form a row at the
        end.

        Raises:
            NoRows: rows that load() saw have been deleted meanwhile.
        """
        late, left = dict(stream.scan.late), stream.scan.rows
        for view in views(stream.folder):
            rows = view.rows(0, min(len(view), left))
            left -= len(rows)
            if len(rows):
                yield self._section(stream, rows, late)
        if left:
            raise NoRows(
                f"{left} rows of stream {stream.hello.stream} were deleted while they were read; read them again"
            )
        if late:
            yield self._late_rows(stream, late)

    def events(self, stream: Stream) -> Iterator[Event]:
        """Yields the events of a stream that load() saw, in order."""
        left = stream.scan.events
        for view in views(stream.folder):
            for _, frame in view.frames:
                if isinstance(frame, Event) and left:
                    left -= 1
                    yield frame

    def _section(self, stream: Stream, rows: View, late: dict[int, Event]) -> Section:
        columns = {
            signal.name: rows.values[place]
            for place, signal in enumerate(signals_of(rows.schema))
            if signal.name in self.signals
        }
        columns = {name: column for name, column in columns.items() if measured(column).any()}
        row_of = {step: row for row, step in enumerate(rows.steps.tolist()) if step in late}
        for step, row in row_of.items():
            _set_late(columns, row, len(rows), late.pop(step).data)
        return Section(stream, rows.steps, rows.times, columns)

    def _late_rows(self, stream: Stream, late: Mapping[int, Event]) -> Section:
        columns: dict[str, Floats] = {}
        for row, step in enumerate(sorted(late)):
            _set_late(columns, row, len(late), late[step].data)
        times = np.array([late[step].time for step in sorted(late)], np.int64)
        return Section(stream, np.array(sorted(late), np.int64), times, columns)


def load(path: Path, tensors: bool = True) -> RecordedRun:
    """Reads which streams and signals the folder of a run, or of one stream, has.

    Args:
        tensors: Whether signals of single tensors are included.

    Raises:
        NoJournal: there is no journal.
        NoRows: the run has no row.
    """
    signals: dict[str, Signal] = {}
    found = []
    for folder in streams_in(path):
        seen = scan(folder, tensors)
        signals |= seen.signals
        if seen.hello is not None and (seen.rows or seen.late):
            found.append((folder, seen.hello, seen))
    if not found:
        raise NoRows(f"the run in {str(path)!r} has no recorded step yet")
    found.sort(key=lambda entry: (entry[1].role == "host", entry[1].rank, entry[1].host, entry[1].started))
    prefixes = _prefixes([hello for _, hello, _ in found])
    streams = [Stream(*entry, prefix) for entry, prefix in zip(found, prefixes, strict=True)]
    return RecordedRun(path, streams, signals)


def json_of(data: Any) -> str:
    """Returns data of an event or a finding as JSON text; NaN and infinities become text."""
    return msgspec.json.encode(wording.finite(data)).decode()


def _prefixes(hellos: Sequence[Hello]) -> list[str]:
    """Returns the prefix of each stream. Attempts are in order of their start."""
    writers = [_writer(hello) for hello in hellos]
    ranks = {writer for writer, hello in zip(writers, hellos, strict=True) if hello.role == "rank"}
    totals, counts = Counter(writers), Counter[str]()
    prefixes = []
    for writer, hello in zip(writers, hellos, strict=True):
        counts[writer] += 1
        prefix = f"{writer}/" if hello.role == "host" or len(ranks) > 1 else ""
        prefixes.append(prefix + (f"attempt_{counts[writer]}/" if totals[writer] > 1 else ""))
    return prefixes


def _writer(hello: Hello) -> str:
    return f"rank_{hello.rank}" if hello.role == "rank" else f"host_{hello.host}"


def _set_late(columns: dict[str, Floats], row: int, rows: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        column = columns[name].copy() if name in columns else np.full(rows, ABSENT, np.float32)
        with np.errstate(over="ignore"):  # as in a row, a number that float32 does not have is infinite
            column[row] = value
        columns[name] = column
