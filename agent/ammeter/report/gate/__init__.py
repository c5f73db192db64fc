"""`ammeter gate RUN [BASELINE]`: checks in CI that a run is within limits of its baseline."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from ammeter.environment.settings import settings
from ammeter.journal.find import NoJournal, find_baseline, find_run
from ammeter.report import baseline, pinned_baselines
from ammeter.report.command import add_silence
from ammeter.report.gate.checks import DEFAULTS, Check, checks_of, findings_check
from ammeter.report.gate.junit import write_junit
from ammeter.verdicts import silence
from ammeter.verdicts.framework import wording
from ammeter.wire import printable
from ammeter.wire.columns import BadBlock

EXIT_WITHIN, EXIT_NO_JOURNAL, EXIT_OUTSIDE = 0, 2, 3


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 within the limits, 3 outside, 2 without journal.
    """
    given = _arguments(argv)
    try:
        run = find_run(given.run, settings().dir)
        other = find_baseline(given.baseline, run) if given.baseline else pinned_baselines.of(run)
        pair = baseline.pair(run, other, frozenset(_keys(given.ignore)))
        checks = list(checks_of(pair, given))
        checks.append(findings_check(run, silence.names(given.silence)))
        title = printable.line(f"{pair.run.name or 'run'} against {pair.baseline.name or 'baseline'}")
        if given.junit:
            write_junit(given.junit, title, checks)
    except (NoJournal, BadBlock, OSError) as error:
        print(f"ammeter gate: {error}", file=sys.stderr)
        return EXIT_NO_JOURNAL
    failed = [check for check in checks if check.fails]
    if given.json:
        document = {
            "within": not failed,
            "checks": [check.as_json() for check in checks],
            "baseline": pair.as_json(),
        }
        print(printable.json(wording.finite(document)))
    else:
        _show(title, checks)
    return EXIT_OUTSIDE if failed else EXIT_WITHIN


def _show(title: str, checks: Sequence[Check]) -> None:
    print(title)
    for check in checks:
        mark = "OUTSIDE" if check.fails else "within" if check.within else "not measured"
        print(printable.line(f"  {mark:<13} {check.name:<12} {check.text}"))


def _keys(given: str) -> list[str]:
    return [key.strip() for key in given.split(",") if key.strip()]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter gate",
        description="Checks that a run is within limits of its baseline, at the steps that both have.",
        epilog="Exit code: 0 within all limits, 3 outside a limit, 2 no journal at this path. A limit that is given and"
        " cannot be measured counts as exceeded. Settings must be equal, and no finding may have severity page.",
    )
    parser.add_argument(
        "run",
        help="folder of a run, or of all runs, which selects the run that started last; or the id or name of a run in"
        " AMMETER_DIR",
    )
    parser.add_argument(
        "baseline",
        nargs="?",
        help="folder of a run, or the id or name of a run in the same folder; by default the one that the run names,"
        " or that `ammeter baseline pin` has pinned for its name or project",
    )
    for name, limit in (
        ("slower", "longer time per step"),
        ("memory", "higher peak of device memory"),
        ("drift", "worse last validation"),
    ):
        parser.add_argument(f"--{name}", type=_limit, metavar="PERCENT", help=f"{limit} ({DEFAULTS[name]:g})")
    parser.add_argument("--reproducible", action="store_true", help="losses must be bit-identical")
    parser.add_argument("--ignore", default="", metavar="KEYS", help="settings that may differ, separated by commas")
    add_silence(parser, "a verdict that does not fail the gate")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="also write the checks as JUnit XML, for CI services"
    )
    return parser.parse_args(argv)


def _limit(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = math.nan
    if not math.isfinite(percent):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of percent; use 5, or -20 for a fifth less")
    return percent
