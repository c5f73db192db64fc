"""The rows, statistics and events of a run as columns of numpy, before any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.recorded.recorded_run import RecordedRun, Section, Stream, json_of
from ammeter.recorded.signal_names import Signal
from ammeter.report.event_text import sentence
from ammeter.wire.columns import ABSENT


@dataclass(frozen=True)
class Words:
    """A column with few different words: word number `codes[row]` of `words`."""

    words: Sequence[str]
    codes: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Times:
    """Nanoseconds since 1970, UTC."""

    nanoseconds: npt.NDArray[np.int64]


Column = npt.NDArray[Any] | Words | Times | list[str | None]
"""Numbers, of which absent float32 values have the bits of ABSENT; words; times; or text."""

Table = Mapping[str, Column]


def steps(run: RecordedRun) -> Table:
    """Returns a row per step of each rank. Readings of a host's devices are no steps."""
    streams = _ranks(run)
    sections = [section for stream in streams for section in run.read(stream)]
    names = [name for name, signal in run.signals.items() if signal.tensor is None]
    columns = {name: _joined(name, sections) for name in names if any(name in part.columns for part in sections)}
    lengths = [(section.stream, len(section)) for section in sections]
    return {
        "step": _concatenated([section.steps for section in sections], np.int64),
        "time": Times(_concatenated([section.times for section in sections], np.int64)),
        **_places(streams, lengths),
        **columns,
    }


def tensors(run: RecordedRun, statistic: str | None = None) -> Table:
    """Returns a row per measured value of each statistic of each tensor, in the order of the steps."""
    signals = {
        name: signal
        for name, signal in run.signals.items()
        if signal.tensor is not None and statistic in (None, signal.column)
    }
    streams, parts = _ranks(run), []
    for stream in streams:
        parts += [part for section in run.read(stream) if (part := _measured(section, signals))]
    names = list(signals)
    kinds = _numbered([signal.column for signal in signals.values()])
    labels = _numbered([_tensor(signal) for signal in signals.values()])
    codes = _concatenated([part.signals for part in parts], np.int64)
    return {
        "step": _concatenated([part.steps for part in parts], np.int64),
        "time": Times(_concatenated([part.times for part in parts], np.int64)),
        **_places(streams, [(part.stream, len(part.steps)) for part in parts]),
        "tensor": Words(labels.words, labels.codes[codes] if names else np.zeros(0, np.int32)),
        "statistic": Words(kinds.words, kinds.codes[codes] if names else np.zeros(0, np.int32)),
        "value": _concatenated([part.values for part in parts], np.float32),
    }


def events(run: RecordedRun) -> Table:
    """Returns a row per event of each rank, with its sentence and its data."""
    streams = _ranks(run)
    found = [(stream, event) for stream in streams for event in run.events(stream)]
    return {
        "step": np.array([event.step for _, event in found], np.int64),
        "time": Times(np.array([event.time for _, event in found], np.int64)),
        **_places(streams, [(stream, 1) for stream, _ in found]),
        "name": _numbered([event.name for _, event in found]),
        "text": [sentence(event) for _, event in found],
        "data": [json_of(event.data) for _, event in found],
    }


@dataclass(frozen=True)
class _Part:
    """The measured values of a section; `signals` has the number of each value's signal."""

    stream: Stream
    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    signals: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


def _measured(section: Section, signals: Mapping[str, Signal]) -> _Part | None:
    present = [(number, name) for number, name in enumerate(signals) if name in section.columns]
    if not present:
        return None
    masks = np.stack([section.masks[name] for _, name in present], axis=1)
    values = np.stack([section.columns[name] for _, name in present], axis=1)
    rows, places = masks.nonzero()
    numbers = np.array([number for number, _ in present], np.int64)[places]
    return _Part(section.stream, section.steps[rows], section.times[rows], numbers, values[rows, places])


def _ranks(run: RecordedRun) -> list[Stream]:
    return [stream for stream in run.streams if stream.rank is not None]


def _places(streams: Sequence[Stream], lengths: Sequence[tuple[Stream, int]]) -> dict[str, Column]:
    """Returns the columns rank, host and stream of consecutive rows."""
    number = {stream.hello.stream: at for at, stream in enumerate(streams)}
    counts = [length for _, length in lengths]
    codes = np.repeat(np.array([number[stream.hello.stream] for stream, _ in lengths], np.int32), counts)
    hosts = _numbered([stream.hello.host for stream in streams])
    return {
        "rank": np.array([stream.hello.rank for stream in streams], np.int32)[codes],
        "host": Words(hosts.words, hosts.codes[codes]),
        "stream": Words([stream.hello.stream for stream in streams], codes),
    }


def _joined(name: str, sections: Sequence[Section]) -> npt.NDArray[np.float32]:
    parts = [
        section.columns[name] if name in section.columns else np.full(len(section), ABSENT, np.float32)
        for section in sections
    ]
    return _concatenated(parts, np.float32)


def _concatenated(parts: Sequence[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, kind)


def _numbered(words: Sequence[str]) -> Words:
    """Returns words with repetitions as numbers of different ones, in the order of their first appearance."""
    number: dict[str, int] = {}
    codes = [number.setdefault(word, len(number)) for word in words]
    return Words(list(number), np.array(codes, np.int32))


def _tensor(signal: Signal) -> str:
    """Returns the tensor of a signal, with the `#2` of a second one of this name."""
    return signal.name.removeprefix(f"{signal.column}/")
