"""Answers what the tensors of a run would lose in another format or at another scale, from its journal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ammeter.journal.find import streams_in, views
from ammeter.verdicts.framework import wording
from ammeter.whatif.answer import TensorForecast, answer
from ammeter.whatif.question import Question
from ammeter.whatif.readings import EVENT, Readings
from ammeter.wire.frames import Event, Hello


@dataclass(frozen=True)
class WhatIf:
    """A question and its answer for each tensor."""

    question: Question
    tensors: list[TensorForecast]

    def as_json(self) -> dict[str, Any]:
        scale = self.question.scale
        return {
            "of": self.question.of,
            "format": self.question.format.name,
            "scale": scale,
            "items": [wording.finite(asdict(tensor)) for tensor in self.tensors],
        }


def what_if(run: Path, question: Question) -> WhatIf:
    """Reads the newest stream of the lowest rank that has readings."""
    found = [entry for stream in streams_in(run) if (entry := _read(stream, question.of)) is not None]
    _, _, readings = min(found, key=lambda entry: (entry[0], -entry[1]), default=(0, 0, {}))
    return WhatIf(question, list(answer(readings, question)))


def _read(stream: Path, of: str) -> tuple[int, int, Any] | None:
    """Returns (rank, start, readings) of a stream; None without readings."""
    collected, hello = Readings(of), None
    for view in views(stream):
        for _, frame in view.frames:
            if isinstance(frame, Hello):
                hello = frame
            elif isinstance(frame, Event) and frame.name == EVENT:
                collected.add(frame.step, frame.data)
    readings = collected.later_half()
    return (hello.rank, hello.started, readings) if hello and readings else None
