"""Runs that are pinned as baselines, in a file beside the folders of the runs.

The collector has pins of its own, with the same precedence: server/ammeter_server/runs/baselines.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ammeter.journal.find import NoJournal, find_baseline, hello_of, streams_in
from ammeter.report.baseline import named_baseline
from ammeter.wire.frames import Hello

FILE = "baselines.json"


class Pin(msgspec.Struct, frozen=True, order=True):
    """A pin. name: of the runs that it is for; empty for all runs of the project. run: its id."""

    project: str
    name: str
    run: str


def of(run: Path) -> Path:
    """Returns the baseline of a run: the one that it names, else the one pinned for its name, else for its project.

    Raises:
        NoJournal: there is none.
    """
    if named := named_baseline(run):
        return find_baseline(named, run)
    hello = first_hello(run)
    pins = {(pin.project, pin.name): pin.run for pin in read(run.resolve().parent)}
    for name in dict.fromkeys((hello.name, "")):
        pinned = pins.get((hello.project, name))
        if pinned == run.name:
            raise NoJournal(f"{run.name} is itself the pinned baseline; name another BASELINE")
        if pinned is not None:
            return find_baseline(pinned, run)
    raise NoJournal(
        f"{run.name} has no baseline; name BASELINE, set the tag `baseline`, or pin a run: ammeter baseline pin RUN"
    )


def read(folder: Path) -> list[Pin]:
    """Reads the pins of a folder of runs; none without the file.

    Raises:
        NoJournal: the file has another content.
    """
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=list[Pin])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise NoJournal(
            f"{str(folder / FILE)!r} has no pins ({error}); remove it, and pin the baselines again"
        ) from error


def write(folder: Path, pins: list[Pin]) -> None:
    """Replaces the pins of a folder of runs."""
    new = folder / f".{FILE}.{os.getpid()}"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(sorted(pins))) + b"\n")
    new.replace(folder / FILE)


def first_hello(run: Path) -> Hello:
    """Returns the first hello of a run's ranks. Raises NoJournal if no rank has written one."""
    hellos = [hello for stream in streams_in(run) if (hello := hello_of(stream)) and hello.role == "rank"]
    if not hellos:
        raise NoJournal(f"{str(run)!r} has no journal of a rank; use the folder of a watched run")
    return min(hellos, key=lambda hello: hello.started)
