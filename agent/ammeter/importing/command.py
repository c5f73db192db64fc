"""`ammeter import SOURCE --from FORMAT`: reads a history, writes it as a run, and says what it found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from ammeter.environment.settings import settings
from ammeter.export.errors import ExportFailed
from ammeter.importing import recorder
from ammeter.importing.history import History, ImportFailed
from ammeter.importing.metric_names import columns_of
from ammeter.verdicts.framework import wording
from ammeter.wire import printable
from ammeter.wire.frames import SCALARS, is_loss

EXIT_OK, EXIT_FAILED = 0, 1

FORMATS = {
    "tensorboard": "a folder of event files",
    "wandb": "a file run-ID.wandb of the offline mode, or a folder with one",
    "mlflow": "a tracking URI such as sqlite:///mlflow.db, or a folder",
    "csv": "a file with a row per step",
    "jsonl": "a file with a JSON object per step",
}
"""Format -> what SOURCE is."""

READERS: dict[str, tuple[str, str]] = {
    "csv": ("from_table", "read_csv"),
    "jsonl": ("from_table", "read_jsonl"),
}
"""Module and function of formats that do not have the module `from_<format>` with `read`."""

OPTIONS = {
    "loss": ("loss", "training loss"),
    "val_loss": ("val-loss", "validation loss"),
    "scale": ("scale", "loss scale"),
    "grad_norm": ("grad-norm", "norm of all gradients"),
    "optimizer_lr": ("lr", "learning rate"),
    "skipped": ("skipped", "1 in steps that the scaler skipped, else 0"),
}
"""Column -> its option, and what the metric is."""


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 when the run was written, 1 when the history cannot be read.
    """
    given = _arguments(argv)
    try:
        history = _read(given.format, given.source, given.run)
        columns = _columns(history, {name: metric for name in OPTIONS if (metric := getattr(given, name))})
        folder = given.dir if given.dir is not None else settings().dir
        path = recorder.record(history, columns, given.format, folder, given.name)
    except (ImportFailed, ExportFailed, OSError) as error:
        print(f"ammeter import: {error}", file=sys.stderr)
        return EXIT_FAILED
    document = _document(history, columns, path)
    if given.json:
        print(printable.json(document))
    else:
        for line in _lines(document):
            print(printable.line(line))
    return EXIT_OK


def _read(format: str, source: str, run: str | None) -> History:
    module, function = READERS.get(format, (f"from_{format}", "read"))
    read: Callable[[str, str | None], History] = getattr(import_module(f"ammeter.importing.{module}"), function)
    with redirect_stdout(sys.stderr):  # some libraries print there what is no part of the answer
        history = read(source, run)
    if not history.values:
        raise ImportFailed(f"{history.source} has no scalar")
    return history


def _columns(history: History, given: dict[str, str]) -> dict[str, str]:
    """Returns metric -> column, and adds which steps were applied where the history says which were skipped."""
    columns = columns_of(history.metrics, given)
    if "skipped" in given and "applied" not in columns.values():
        columns[APPLIED] = "applied"
        for values in history.values.values():
            if given["skipped"] in values:
                values[APPLIED] = float(values[given["skipped"]] == 0)
    others = [metric for metric, column in columns.items() if column not in SCALARS and not is_loss(column)]
    for metric in others[recorder.MAX_METRICS :]:
        del columns[metric]
    return columns


APPLIED = "\0applied"
"""Stands for the metric that follows from the one of the skipped steps; no tool has this name."""


def _document(history: History, columns: dict[str, str], path: Path) -> dict[str, Any]:
    known = {column: metric for metric, column in columns.items() if column in OPTIONS}
    return {
        "run": path.name,
        "path": str(path),
        "source": history.source,
        "steps": len(history.values),
        "columns": {name: known.get(name) for name in OPTIONS},
        "metrics": sorted(metric for metric, column in columns.items() if column not in OPTIONS and metric != APPLIED),
        "left_out": sorted(set(history.metrics) - columns.keys()),
        "has_times": bool(history.times),
    }


def _lines(document: dict[str, Any]) -> list[str]:
    found = [f"{OPTIONS[name][1]}: {metric}" for name, metric in document["columns"].items() if metric]
    missing = [f"--{option}" for name, (option, _) in OPTIONS.items() if not document["columns"][name]]
    lines = [
        f"imported {document['source']} as {document['path']}: {wording.count(document['steps'], 'step')}",
        *found,
        *([f"not found: {', '.join(missing)} NAME gives the name of the metric"] if missing else []),
        f"{wording.count(len(document['metrics']), 'other metric')}: {', '.join(document['metrics']) or 'none'}",
    ]
    if document["left_out"]:
        lines.append(f"left out: {wording.count(len(document['left_out']), 'metric')}; --json names them")
    if not document["has_times"]:
        lines.append("the history has no times; its steps have the time of this import")
    return [*lines, f"Next: ammeter report {document['path']}"]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    formats = "; ".join(f"{name}: {source}" for name, source in FORMATS.items())
    parser = argparse.ArgumentParser(
        prog="ammeter import",
        description="Makes a run of a history that another tool recorded, which ammeter report judges.",
        epilog=f"SOURCE: {formats}. Exit code: 0 the run was written, 1 the history cannot be read.",
    )
    parser.add_argument("source", metavar="SOURCE", help="the history, see below")
    parser.add_argument("--from", dest="format", required=True, choices=list(FORMATS), help="format")
    parser.add_argument("--run", metavar="RUN", help="id, name or folder of the run, if SOURCE has several")
    parser.add_argument("--name", default="", help="name of the new run; default that of the history")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="folder of the journals; default AMMETER_DIR")
    for column, (option, meaning) in OPTIONS.items():
        parser.add_argument(f"--{option}", dest=column, default="", metavar="NAME", help=f"metric: {meaning}")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    return parser.parse_args(argv)
