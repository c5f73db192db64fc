"""Writes a run as a run of Weights & Biases, as files of its offline mode or by an upload."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any

from ammeter.export.errors import library
from ammeter.export.new_target import new_folder
from ammeter.export.written import Written
from ammeter.recorded.recorded_run import RecordedRun, Stream

UPLOAD = "wandb:"
"""Begins a target that is not a folder: [ENTITY/]PROJECT, which is uploaded unless WANDB_MODE is offline."""

FORBIDDEN = re.compile(r"[/\\#?%:\r\n]")
"""Characters that W&B refuses in the name of a project."""

Record = tuple[int, int, int, dict[str, float]]
"""Step, index of the stream, time in ns, values by key."""


def write(written: Written) -> None:
    """Writes all streams as one history: the values of a step are logged together, each under its stream's prefix."""
    (wandb,) = library("wandb", "wandb")
    with _place(written) as place:
        run = wandb.init(**place, **_identity(written.run), settings=_settings(wandb))
        code = 1
        try:
            _log(run, written)
            code = 0
        finally:
            run.finish(exit_code=code)
            wandb.teardown()  # waits until its service has written everything
    written.details = {"wandb_run": run.id}


@contextmanager
def _place(written: Written) -> Iterator[dict[str, Any]]:
    """Yields where W&B shall write to, as arguments of wandb.init()."""
    if written.target.startswith(UPLOAD):
        entity, _, project = written.target.removeprefix(UPLOAD).rpartition("/")
        yield {"entity": entity or None, "project": project}
    else:
        with new_folder(written.target) as folder:
            yield {"mode": "offline", "dir": str(folder), "project": _project(written.run)}


def _settings(wandb: Any) -> Any:
    """Returns settings with which W&B records nothing of this process."""
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _identity(run: RecordedRun) -> dict[str, Any]:
    hello = run.hello
    return {
        "name": hello.name or hello.run,
        "config": {**hello.config, "ammeter_run": hello.run},
    }


def _project(run: RecordedRun) -> str:
    return FORBIDDEN.sub("-", run.hello.project) or "default"


def _log(run: Any, written: Written) -> None:
    streams = written.run.streams
    for stream in streams:
        if stream.rank is None:  # its steps are readings of the devices, not those of the training
            run.define_metric(f"{stream.prefix}*", step_metric=f"{stream.prefix}time")
    readers = [_records(stream, index, written) for index, stream in enumerate(streams)]
    for step, records in groupby(heapq.merge(*readers, key=itemgetter(0, 1)), key=itemgetter(0)):
        run.log(_together(records), step=step)


def _records(stream: Stream, index: int, written: Written) -> Iterator[Record]:
    for section in written.read(stream):
        for step, time, values in section.records():
            named = {f"{stream.prefix}{name}": value for name, value in values.items()}
            if stream.prefix:
                named[f"{stream.prefix}time"] = time / 1e9
            yield step, index, time, named


def _together(records: Iterable[Record]) -> dict[str, float]:
    """Returns the values of all streams at one step, and the time at which the last of them reached it."""
    values: dict[str, float] = {}
    last = 0
    for _, _, time, named in records:
        values |= named
        last = max(last, time)
    return values | {"_timestamp": last / 1e9}
