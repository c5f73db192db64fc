"""`ammeter export RUN --to FORMAT TARGET`: parses the arguments, exports the run, and says what was written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from ammeter.environment.settings import settings
from ammeter.export.errors import ExportFailed
from ammeter.export.written import Written
from ammeter.journal.find import NoJournal, find_run
from ammeter.recorded.recorded_run import NoRows, load
from ammeter.verdicts.framework import wording
from ammeter.wire import printable
from ammeter.wire.columns import BadBlock

EXIT_OK, EXIT_FAILED, EXIT_NO_JOURNAL = 0, 1, 2

TARGETS = {
    "csv": "a file",
    "parquet": "a file",
    "tensorboard": "a new folder",
    "mlflow": "a tracking URI such as sqlite:///mlflow.db, or a folder",
    "wandb": "a new folder for files of the offline mode, or wandb:[ENTITY/]PROJECT to upload",
    "otlp": "the URL of an OTLP receiver, such as http://localhost:4318",
    "record": "a JSON file for a model registry, without the rows",
}
"""Format -> what TARGET is. The module `to_<format>` writes it."""

RECORD = "record"
"""The format that has no rows."""

FILES = ("csv", "parquet", RECORD)


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 when everything was written, 1 when the target cannot have it, 2 without journal.
    """
    given = _arguments(argv)
    try:
        if given.force and given.to not in FILES:
            files = f"{', '.join(FILES[:-1])} or {FILES[-1]}"
            raise ExportFailed(f"--force replaces a file of {files}; for {given.to} name a new target")
        run = load(find_run(given.run, settings().dir), tensors=given.tensors)
        written = Written(run, given.to, given.target, given.force)
        _write(written)
    except (NoJournal, BadBlock) as error:
        print(f"ammeter export: {error}", file=sys.stderr)
        return EXIT_NO_JOURNAL
    except (ExportFailed, NoRows, OSError) as error:
        print(f"ammeter export: {error}", file=sys.stderr)
        return EXIT_FAILED
    document = written.as_json()
    print(printable.json(document) if given.json else printable.line(_sentence(document)))
    if document["lost"] and not given.json:
        print(printable.line(_lost(document["lost"])), file=sys.stderr)
    return EXIT_OK


def _write(written: Written) -> None:
    write: Callable[[Written], None] = import_module(f"ammeter.export.to_{written.to}").write
    try:
        with redirect_stdout(sys.stderr):  # some libraries print there what is no part of the answer
            write(written)
    except (ExportFailed, NoRows, BadBlock, OSError):
        raise
    except Exception as error:  # each library has errors of its own; all of them say what it refuses
        raise ExportFailed(f"{written.to} failed with {type(error).__name__}: {error}") from error
    finally:
        written.progress.end()


def _sentence(document: dict[str, Any]) -> str:
    done = f"exported {document['name'] or document['run']} to {document['target']}"
    if document["to"] == RECORD:
        return done
    streams = f" of {wording.count(document['streams'], 'stream')}" if document["streams"] > 1 else ""
    counts = f"{wording.count(document['rows'], 'row')}{streams} with {wording.count(document['values'], 'value')}"
    signals = wording.count(document["signals"], "signal")
    return f"{done}: {counts} of {signals}"


def _lost(lost: dict[str, dict[str, int]]) -> str:
    steps = sum(counts["steps"] for counts in lost.values())
    number = f" ({wording.count(steps, 'step')} at least)" if steps else ""
    return f"ammeter export: the journal lacks records{number}, and so does the export: {', '.join(sorted(lost))}"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    targets = "; ".join(f"{name}: {target}" for name, target in TARGETS.items())
    parser = argparse.ArgumentParser(
        prog="ammeter export",
        description="Copies a recorded run from its journal into another tool. The training is not touched.",
        epilog=f"TARGET: {targets}. Exit code: 0 everything was written, 1 the target cannot have it, 2 no journal.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run, or the id or name of a run in AMMETER_DIR")
    parser.add_argument("--to", required=True, choices=list(TARGETS), help="format")
    parser.add_argument("target", metavar="TARGET", help="where to, see below")
    parser.add_argument("--force", action="store_true", help=f"replace an existing file ({', '.join(FILES)})")
    parser.add_argument(
        "--no-tensors", dest="tensors", action="store_false", help="leave out the signals of single tensors"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser.parse_args(argv)
