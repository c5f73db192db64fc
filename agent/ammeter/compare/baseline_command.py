"""`ammeter baseline pin | unpin | list`: pins runs as baselines, beside the journals or at a collector."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from ammeter.client import Client
from ammeter.client.errors import ClientError
from ammeter.environment.settings import settings
from ammeter.journal.find import NoJournal, find_run
from ammeter.report import pinned_baselines
from ammeter.report.pinned_baselines import Pin
from ammeter.wire import printable


def main(words: Sequence[str]) -> int:
    """Runs the command. Exit code: 0, or 2 for a wrong call."""
    given = _parser().parse_args(words)
    try:
        pins = _at_collector(given) if given.collector or given.url else _beside_journals(given)
    except (NoJournal, OSError, ValueError, ClientError) as error:
        print(printable.line(f"ammeter baseline: {error}"), file=sys.stderr)
        return 2
    if given.json:
        print(printable.json({"items": [msgspec.structs.asdict(pin) for pin in pins]}))
        return 0
    if not pins:
        print("no run is pinned")
    for pin in pins:
        whose = f"runs named {pin.name}" if pin.name else "all other runs"
        print(printable.line(f"project {pin.project}, {whose}: {pin.run}"))
    return 0


def _beside_journals(given: argparse.Namespace) -> list[Pin]:
    folder = settings(None, given.dir).dir
    if given.action == "list":
        return pinned_baselines.read(folder)
    run = find_run(given.run, folder).resolve()
    folder = run.parent
    hello = pinned_baselines.first_hello(run)
    if given.of == "name" and not hello.name:
        raise ValueError(f"{run.name} has no name; use --of project")
    pin = Pin(hello.project, hello.name if given.of == "name" else "", run.name)
    others = [
        known for known in pinned_baselines.read(folder) if (known.project, known.name) != (pin.project, pin.name)
    ]
    if given.action == "unpin" and pin not in pinned_baselines.read(folder):
        raise ValueError(f"{run.name} is not pinned there; `ammeter baseline list` shows the pins")
    pinned_baselines.write(folder, [*others, pin] if given.action == "pin" else others)
    return pinned_baselines.read(folder)


def _at_collector(given: argparse.Namespace) -> list[Pin]:
    with Client(given.url) as client:
        if given.action == "list":
            found = client.baselines(given.project)
        else:
            change = client.pin_baseline if given.action == "pin" else client.unpin_baseline
            found = change(given.run, given.of)
    return [Pin(pin.project, pin.name or "", pin.run) for pin in found]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter baseline",
        description="Pin a run as the baseline of its project, or of the runs with its name. `ammeter gate` uses the"
        " pins beside the journals, the collector its own.",
        epilog="Options of the actions: --of project or name, --dir, --collector, --url, --json.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    for action, text in (
        ("pin", "Pin a run, in place of the run that is pinned there."),
        ("unpin", "Remove the pin of a run."),
        ("list", "List the pins."),
    ):
        adding = actions.add_parser(action, help=text, description=text)
        adding.add_argument("--dir", help="folder with the journals (AMMETER_DIR, else ~/.ammeter)")
        adding.add_argument("--collector", action="store_true", help="at the collector of AMMETER_URL")
        adding.add_argument("--url", help="at this collector")
        adding.add_argument("--json", action="store_true", help="print the pins as JSON")
        if action == "list":
            adding.add_argument("--project", help="with a collector: only pins of this project")
        else:
            adding.add_argument("run", metavar="RUN", help="its folder, id or name; with a collector its id")
            adding.add_argument(
                "--of", choices=("project", "name"), default="project", help="for which runs (project: all of it)"
            )
    return parser
