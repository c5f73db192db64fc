"""`ammeter report`: parses the arguments and prints the diagnosis as text, JSON or a post-mortem."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ammeter.environment.settings import settings
from ammeter.journal.find import NoJournal, find_runs, streams_in, views
from ammeter.report import postmortem, terminal
from ammeter.report.diagnosis import Report, diagnose
from ammeter.verdicts import silence
from ammeter.wire import columns, printable

FINE, WRONG_CALL, PAGE = 0, 2, 3


def main(argv: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 without page-level finding, 3 with one, 2 without journal."""
    given = _arguments(argv)
    try:
        runs = find_runs(given.path, every=given.all)
        reports = [diagnose(run, given.baseline, silence.names(given.silence)) for run in runs]
        if given.postmortem is not None:
            _write(given.postmortem, runs, reports)
    except (NoJournal, columns.BadBlock, OSError) as error:
        print(f"ammeter report: {error}", file=sys.stderr)
        return WRONG_CALL
    if given.json:
        told = [each.as_json() for each in reports]
        print(printable.json({"items": told} if given.all else told[0]))
    elif given.postmortem is None:
        for report in reports:
            terminal.show(report)
    return PAGE if any(each.paged for each in reports) else FINE


def _write(file: str, runs: Sequence[Path], reports: Sequence[Report]) -> None:
    """Writes one document per run to the file, or to stdout for `-`."""
    said = "\n".join(
        postmortem.document(each, {stream.name: partial(views, stream) for stream in streams_in(run)})
        for run, each in zip(runs, reports, strict=True)
    )
    if file == "-":
        sys.stdout.write(said)
    else:
        Path(file).write_text(said, encoding="utf-8")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter report",
        description="Say what a run's journals hold: what went wrong, why, and what to change.",
        epilog="Exit code: 0 nothing to wake a person for, 3 a page-level finding, 2 no journal there.",
    )
    here = "a stream's folder, a run's, or the folder of all runs, which means the run that started last (%(default)s)"
    parser.add_argument("path", type=Path, nargs="?", default=settings().dir, help=here)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--baseline", metavar="RUN", help="compare with this run: a path, or its id or name beside it")
    parser.add_argument(
        "--postmortem",
        nargs="?",
        const="-",
        metavar="FILE",
        help="a document for the review of an incident, in Markdown; - or nothing for the output",
    )
    parser.add_argument(
        "--silence", action="append", default=[], type=verdict, metavar="VERDICT", help="leave this verdict out"
    )
    parser.add_argument("--all", action="store_true", help="every run in the folder, oldest first")
    return parser.parse_args(argv)


def verdict(text: str) -> str:
    """Argument type for verdict ids separated by commas."""
    try:
        return ",".join(silence.names([text]))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
