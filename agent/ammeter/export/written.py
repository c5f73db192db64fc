"""An export under way: its run and target, what was written so far, and its progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ammeter.counters.run import losses_of
from ammeter.recorded.recorded_run import RecordedRun, Section, Stream
from ammeter.report.terminal.progress import Progress


@dataclass
class Written:
    """One export. Its target reads the rows here, so that they are counted.

    Attributes:
        force: Whether an existing file may be replaced.
        details: What else the target says, such as the id that it gave to the run.
    """

    run: RecordedRun
    to: str
    target: str
    force: bool = False
    rows: int = 0
    values: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress = Progress("export", self.run.sections)

    def read(self, stream: Stream) -> Iterator[Section]:
        """Yields the sections of a stream, and counts each when the next one is asked for."""
        for section in self.run.read(stream):
            self.progress.begin(f"{stream.prefix.rstrip('/') or 'rank_0'} step {section.steps[-1]}")
            yield section
            self.rows += len(section)
            self.values += section.values

    def as_json(self) -> dict[str, Any]:
        hello = self.run.hello
        return {
            "run": hello.run,
            "name": hello.name,
            "project": hello.project,
            "to": self.to,
            "target": self.target,
            "rows": self.rows,
            "values": self.values,
            "signals": len(self.run.signals),
            "streams": len(self.run.streams),
            "lost": losses_of(stream.scan.lost for stream in self.run.streams),
            **self.details,
        }
