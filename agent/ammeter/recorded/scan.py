"""The first reading of a stream: what it contains, without its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from ammeter.counters.stream import add_losses
from ammeter.journal.find import views
from ammeter.recorded.signal_names import Signal, signal_logged, signals_of
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Bye, Event, Hello, Lost
from ammeter.wire.logged_values import logged_values


@dataclass
class Scan:
    """The content of one stream.

    Attributes:
        sections: Number of views that have rows.
        events: Number of events.
        signals: The signals that are measured in any row, by name.
        late: Values that run.log set after the row was written, by step: `data` has them by signal.
        lost: The records that the stream misses: reason -> {steps, events}.
        ended: Why the process ended, as its final record says it.
        devices: What the stream of a host says of each of its devices.
    """

    hello: Hello | None = None
    rows: int = 0
    sections: int = 0
    events: int = 0
    signals: dict[str, Signal] = field(default_factory=dict)
    late: dict[int, Event] = field(default_factory=dict)
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    ended: str | None = None
    devices: list[dict[str, str]] = field(default_factory=list)

    def add_frame(self, frame: Hello | Event | Lost | Bye) -> None:
        if isinstance(frame, Hello):
            self.hello = self.hello or frame
        elif isinstance(frame, Lost):
            self.lost = add_losses(self.lost, [frame])
        elif isinstance(frame, Bye):
            self.ended = frame.reason
        else:
            self.events += 1
            self._add_late(frame)
            if frame.name == "devices.found":
                self.devices = [dict(device) for device in frame.data.get("devices", ())]

    def add_rows(self, view: View, tensors: bool) -> None:
        self.rows += len(view)
        self.sections += 1
        has_values = measured(view.values).any(axis=1)
        signals = signals_of(view.schema)
        for place in np.flatnonzero(has_values).tolist():
            if tensors or signals[place].tensor is None:
                self.signals.setdefault(signals[place].name, signals[place])

    def _add_late(self, event: Event) -> None:
        signals = {signal_logged(name): value for name, value in logged_values(event).items()}
        if not signals:
            return
        known = self.late.get(event.step, msgspec.structs.replace(event, data={}))
        values = {signal.name: value for signal, value in signals.items()}
        self.late[event.step] = msgspec.structs.replace(known, data=known.data | values)
        for signal in signals:
            self.signals.setdefault(signal.name, signal)


def scan(folder: Path, tensors: bool = True) -> Scan:
    """Reads a stream once. Without `tensors`, signals of single tensors are left out."""
    found = Scan()
    for view in views(folder):
        for _, frame in view.frames:
            found.add_frame(frame)
        if len(view):
            found.add_rows(view, tensors)
    return found
