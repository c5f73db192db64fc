"""`ammeter compare A... --against B...`: two groups of runs with several seeds each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ammeter.client import Client
from ammeter.client.errors import ClientError
from ammeter.compare.text import lines_of
from ammeter.environment.settings import settings
from ammeter.journal.find import NoJournal, find_group
from ammeter.report import baseline
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.groups.group_comparison import Member, compare_groups
from ammeter.wire import printable
from ammeter.wire.columns import BadBlock
from ammeter.wire.metric_directions import DIRECTIONS

EXIT_CODES = {"better": 0, "not distinguishable": 0, "worse": 1, "too few runs": 2, "not comparable": 2}


def main(words: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 better or not distinguishable, 1 worse, 2 not decided or a wrong call.
    """
    given = _parser().parse_args(words)
    try:
        document = _of_collector(given) if given.collector or given.url else _of_journals(given)
    except (NoJournal, BadBlock, OSError, ValueError, ClientError) as error:
        print(printable.line(f"ammeter compare: {error}"), file=sys.stderr)
        return 2
    if given.json:
        print(printable.json(wording.finite(document)))
    else:
        for line in lines_of(document):
            print(printable.line(line))
    return EXIT_CODES[document["decision"]]


def _of_journals(given: argparse.Namespace) -> dict[str, Any]:
    folder = settings(None, given.dir).dir
    groups = [_paths(selectors, folder) for selectors in (given.runs, given.against)]
    metrics = {name for group in groups for path in group for name in baseline.metrics_of(path)}
    metrics |= {given.metric} if given.metric else set()
    members = [[Member(path.name, baseline.read(path, sorted(metrics))) for path in group] for group in groups]
    ignored = frozenset(key.strip() for key in given.ignore.split(",") if key.strip())
    return compare_groups(members[0], members[1], given.metric, given.better, ignored).as_json()


def _paths(selectors: Sequence[str], folder: Path) -> list[Path]:
    found = (path.resolve() for selector in selectors for path in find_group(selector, folder))
    return list(dict.fromkeys(found))


def _of_collector(given: argparse.Namespace) -> dict[str, Any]:
    with Client(given.url) as client:
        return client.compare_groups(
            given.runs,
            given.against,
            metric=given.metric,
            better=given.better,
            project=given.project,
            ignore=given.ignore,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter compare",
        description="Compare two groups of runs with several seeds each: the difference of a metric, its 95 %"
        " confidence interval by Welch's t, and a decision.",
        epilog="A RUN is the folder of a run, the id of a run, a name, which means all runs with it, or a tag such as"
        " recipe=bf16, which means all runs with it. Exit code: 0 better or not distinguishable, 1 worse, 2 too few"
        " runs, not comparable or a wrong call.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the runs of group A")
    parser.add_argument("--against", nargs="+", required=True, metavar="RUN", help="the runs of group B")
    parser.add_argument(
        "--metric", metavar="NAME", help="the metric (the first validation of all runs, else the training loss)"
    )
    parser.add_argument(
        "--better", choices=DIRECTIONS, help="which values of it are better (as the tag better.NAME of the runs says)"
    )
    parser.add_argument(
        "--ignore", default="", metavar="KEYS", help="settings that may differ within a group, separated by commas"
    )
    parser.add_argument("--dir", help="folder with the journals (AMMETER_DIR, else ~/.ammeter)")
    parser.add_argument("--collector", action="store_true", help="compare runs at the collector of AMMETER_URL")
    parser.add_argument("--url", help="compare runs at this collector")
    parser.add_argument("--project", help="with a collector: the project of names and tags")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
