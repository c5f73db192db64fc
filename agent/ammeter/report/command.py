"""`ammeter report`: parses the arguments and prints the diagnosis as text, JSON or a post-mortem."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ammeter.environment.settings import settings
from ammeter.journal.find import NoJournal, find_runs, streams_in, views
from ammeter.report import terminal
from ammeter.report.diagnosis import Report, diagnose
from ammeter.report.terminal import forecasts
from ammeter.report.what_if import what_if
from ammeter.verdicts import silence
from ammeter.whatif.question import Question, question_of
from ammeter.wire import columns, printable

EXIT_OK, EXIT_NO_JOURNAL, EXIT_PAGE = 0, 2, 3


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 without page-level finding, 3 with one, 2 without journal.
    """
    given = _arguments(argv)
    try:
        runs = find_runs(given.path, every=given.all)
        reports = [diagnose(run, given.baseline, silence.names(given.silence)) for run in runs]
        answers = [what_if(run, given.what_if) if given.what_if else None for run in runs]
        if given.postmortem is not None:
            _write_postmortems(given.postmortem, runs, reports)
    except (NoJournal, columns.BadBlock, OSError) as error:
        print(f"ammeter report: {error}", file=sys.stderr)
        return EXIT_NO_JOURNAL
    if given.baseline and not given.all and reports[0].pair is None:
        print(
            f"ammeter report: {given.baseline!r} is this run itself; name another run to compare with", file=sys.stderr
        )
    if given.json:
        documents = [
            report.as_json() | ({"what_if": found.as_json()} if found else {})
            for report, found in zip(reports, answers, strict=True)
        ]
        print(printable.json({"items": documents} if given.all else documents[0]))
    elif given.postmortem is None:
        for report, found in zip(reports, answers, strict=True):
            terminal.show(report)
            if found:
                forecasts.show(found)
    return EXIT_PAGE if any(report.paged for report in reports) else EXIT_OK


def _write_postmortems(file: str, runs: Sequence[Path], reports: Sequence[Report]) -> None:
    """Writes one document per run to the file, or to stdout for `-`."""
    from ammeter.report import postmortem  # loads jinja2, which nothing else of the agent needs

    text = "\n".join(
        postmortem.document(report, {stream.name: partial(views, stream) for stream in streams_in(run)})
        for run, report in zip(runs, reports, strict=True)
    )
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, encoding="utf-8")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter report",
        description="Diagnoses a run from its journals: findings with cause and fix.",
        epilog="Exit code: 0 no page-level finding, 3 a page-level finding, 2 no journal at this path.",
    )
    path = "folder of a stream, of a run, or of all runs, which selects the run that started last (%(default)s)"
    parser.add_argument("path", type=Path, nargs="?", default=settings().dir, help=path)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--baseline", metavar="RUN", help="run to compare with: its path, or its id or name in the same folder"
    )
    parser.add_argument(
        "--postmortem",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write a Markdown document for an incident review; - or nothing for standard output",
    )
    parser.add_argument(
        "--what-if",
        nargs="?",
        const="float16",
        type=_question,
        metavar="FORMAT@SCALE",
        help="what each tensor would lose in another format or at another scale: float16@2^10, float8_e4m3fn@best, "
        "weight:float8_e5m2@best; default: float16 at the recorded scale",
    )
    add_silence(parser, "list this verdict only as silenced")
    parser.add_argument("--all", action="store_true", help="report every run in the folder, oldest first")
    return parser.parse_args(argv)


def add_silence(parser: argparse.ArgumentParser, effect: str) -> None:
    """Adds the option --silence of a command that diagnoses a run."""
    parser.add_argument("--silence", action="append", default=[], type=_verdict_ids, metavar="VERDICT", help=effect)


def _question(text: str) -> Question:
    """Argument type for --what-if."""
    try:
        return question_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _verdict_ids(text: str) -> str:
    """Argument type for verdict ids separated by commas."""
    try:
        return ",".join(silence.names([text]))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
