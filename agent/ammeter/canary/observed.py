"""What the journal of one of the two runs shows: precision, casts, scaler, and the curves to compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ammeter.journal.find import NoJournal, find_runs, hello_of, streams_in, views
from ammeter.report import baseline
from ammeter.verdicts.framework.run_history import RunHistory
from ammeter.wire.frames import Bye, Event

GRAD_NORM = "grad_norm"


@dataclass(frozen=True)
class Observed:
    """One run of the canary.

    Attributes:
        autocast: dtypes in which autocast was entered while gradients were recorded.
        scaled: whether an enabled GradScaler, or a loss scale of the program's own, was seen.
        own_scale: whether the loss scale is the program's own.
        halves: float16 or bfloat16 if some weights have such a dtype.
        ending: the last record of the journal, if it names an error.
    """

    history: RunHistory
    folder: Path
    autocast: frozenset[str] = frozenset()
    scaled: bool = False
    own_scale: bool = False
    ending: str = ""
    halves: frozenset[str] = field(default=frozenset())

    @property
    def steps(self) -> int:
        return self.history.last_step + 1


def observe(folder: Path) -> Observed | None:
    """Reads the run in a folder of journals; None if no training was watched."""
    try:
        (run,) = find_runs(folder)
        history = baseline.read(run, [GRAD_NORM, *baseline.metrics_of(run)])
    except NoJournal:
        return None
    autocast: set[str] = set()
    scaled = own_scale = False
    ending = ""
    for frame in _frames(run):
        if isinstance(frame, Bye):
            ending = frame.message if frame.reason == "exception" else ""
        elif frame.name == "autocast.entered" and frame.data.get("grad") is True:
            autocast.add(str(frame.data.get("dtype")))
        elif frame.name == "scaler.seen" and (frame.data.get("enabled") or frame.data.get("own")):
            scaled, own_scale = True, own_scale or bool(frame.data.get("own"))
    dtypes = history.model.dtypes if history.model else frozenset()
    halves = dtypes & {"float16", "bfloat16"}
    return Observed(history, run, frozenset(autocast), scaled, own_scale, ending, halves)


def _frames(run: Path) -> list[Event | Bye]:
    """Returns the events and final records of the lowest rank."""
    hellos = {stream: hello for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank"}
    lowest = min(hello.rank for hello in hellos.values())
    return [
        frame
        for stream, hello in hellos.items()
        if hello.rank == lowest
        for view in views(stream)
        for _, frame in view.frames
        if isinstance(frame, Event | Bye)
    ]
