"""Writes a history as a run: a journal with a row for each step, which says that it was imported."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ammeter import journal
from ammeter._version import __version__
from ammeter.environment.identity import NAMESPACE
from ammeter.importing.history import History, ImportFailed
from ammeter.redaction import process_redactor
from ammeter.wire.columns import ABSENT
from ammeter.wire.frames import IMPORTED, NO_TIMES, Bye, Frame, Hello, Schema, Steps

MAX_METRICS = 256
"""Metrics beside the columns of Ammeter; watch() takes as many names from run.log."""

ENDING = "the imported history ends here"
"""Message of the final record: how the training ended is not known."""

BATCH_ROWS = 500
"""Rows per write()."""


def record(history: History, columns: Mapping[str, str], format: str, folder: Path, name: str) -> Path:
    """Writes the run; returns its folder.

    Args:
        columns: Metric -> column.
        format: The tool.
        folder: That of all runs.
        name: Its name; by default that of the history.

    Raises:
        ImportFailed: it is there already.
    """
    run = str(uuid.uuid5(NAMESPACE, "\0".join(("import", format, history.source))))
    path = folder / run
    if path.exists():
        raise ImportFailed(f"{history.source} is imported already, as {path}; delete that folder to import it again")
    hello = _hello(history, columns, format, run, name)
    writer = journal.Journal(journal.private_folder(journal.private_folder(folder) / run) / hello.stream)
    try:
        writer.hello(hello)
        batch: list[Frame] = []
        for frame in _frames(history, columns, hello):
            batch.append(frame)
            if len(batch) == BATCH_ROWS:
                _append(writer, batch)
        _append(writer, batch)
    except BaseException:
        writer.close()
        shutil.rmtree(path, ignore_errors=True)
        raise
    writer.close()
    return path


def _append(writer: journal.Journal, batch: list[Frame]) -> None:
    if not writer.append(*batch):
        raise ImportFailed(f"{writer.folder} cannot be written; free space there, or name another folder with --dir")
    batch.clear()


def _hello(history: History, columns: Mapping[str, str], format: str, run: str, name: str) -> Hello:
    config = process_redactor.plain(dict(history.config))  # first: it registers the secrets
    facts = {
        IMPORTED: format,
        "imported_source": history.source,
        "imported_with": ", ".join(filter(None, (history.version, f"ammeter {__version__}"))),
        "imported_times": "" if history.times else NO_TIMES,
        "imported_columns": ", ".join(f"{column} = {metric}" for metric, column in columns.items() if column != metric),
    }
    return Hello(
        run=run,
        stream=uuid.uuid4().hex,
        schema=Schema(scalars=tuple(dict.fromkeys(columns.values()))),
        started=min(history.times.values(), default=0) or time.time_ns(),
        name=process_redactor.words(name or history.name or Path(history.source).name),
        project=process_redactor.words(history.project or "default"),
        config=config,
        tags=process_redactor.tags(dict(history.tags)),
        environment={fact: process_redactor.fact(fact, text) for fact, text in facts.items() if text},
    )


def _frames(history: History, columns: Mapping[str, str], hello: Hello) -> Iterator[Steps | Bye]:
    """Yields the rows in the order of the steps. Steps without a time have that of the step before."""
    places = {metric: hello.schema.places[column] for metric, column in columns.items()}
    now, step = hello.started, -1
    for step in sorted(history.values):
        present = {places[name]: value for name, value in history.values[step].items() if name in places}
        if not present:
            continue
        row = np.full(len(hello.schema.scalars), ABSENT, "<f4")
        with np.errstate(over="ignore"):  # as in a row, a number that float32 does not have is infinite
            row[list(present)] = list(present.values())
        now = max(now, history.times.get(step, 0))
        yield Steps(step, now, row.tobytes())
    yield Bye("closed", step, now, ENDING)
