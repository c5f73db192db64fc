"""`ammeter-server report` and `readiness`: the weekly report of a project, and whether it is ready for production."""

from __future__ import annotations

import argparse
import sys
import time

import msgspec

from ammeter.wire import printable
from ammeter_server.config.notify_routes import Subject
from ammeter_server.config.settings import Settings, SettingsError
from ammeter_server.curves.run_axis import RunAxes
from ammeter_server.db import Store
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import runs
from ammeter_server.fleet import markdown
from ammeter_server.fleet.readiness import readiness
from ammeter_server.fleet.weekly_report import WeeklyReport, weekly_report
from ammeter_server.notify.channel import DeliveryError, open_channels, receivers

MAIL = "mailto"
"""Beginning of the names of mail channels: mailto:// and mailtos:// are Apprise's schemes of mail."""


MAX_DAYS = 366
"""A year, as in the API."""


class NoProjectError(Exception):
    """The database has no run of this project."""


def report(store: Store, settings: Settings, arguments: argparse.Namespace) -> int:
    """Prints the report; with --send mails it. Returns 1 if a mail could not be sent."""
    _require(store, arguments.project)
    document = weekly_report(
        store, RunAxes(), settings.cost_per_hour, settings.links, arguments.project, time.time_ns(), arguments.days
    )
    text = markdown.of_report(document, settings.links)
    print(printable.json(_as_json(document)) if arguments.json else text, end="\n" if arguments.json else "")
    return _mail(settings, document, text) if arguments.send else 0


def check_readiness(store: Store, settings: Settings, arguments: argparse.Namespace) -> int:
    """Prints the readiness check. Returns 0 if the project is ready, else 1."""
    _require(store, arguments.project)
    document = readiness(store, settings.links, arguments.project)
    if arguments.json:
        print(printable.json(_as_json(document)))
    else:
        print(markdown.of_readiness(document), end="")
    return 0 if document.ready else 1


def days(text: str) -> int:
    """Parses the length of a period."""
    if not text.isdecimal() or not 0 < int(text) <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days from 1 to {MAX_DAYS}; use 7")
    return int(text)


def _mail(settings: Settings, document: WeeklyReport, text: str) -> int:
    channels = [channel for channel in open_channels(settings).values() if channel.name.startswith(MAIL)]
    channels = receivers(channels, Subject(document.project, "ticket"))
    if not channels:
        raise SettingsError(
            f"no mail channel receives tickets of project {document.project[:80]!r}; add a mailto:// URL to "
            "AMMETER_SERVER_NOTIFY or its file"
        )
    title = f"Ammeter: {printable.name(document.project)}, {document.days} days"
    failed = 0
    for channel in channels:
        try:
            channel.send([{"kind": "report", "severity": "ticket", "title": title, "body": text}])
            print(f"sent to {channel.name}", file=sys.stderr)
        except DeliveryError as error:
            failed += 1
            print(f"ammeter-server: {channel.name}: {error}", file=sys.stderr)
    return 1 if failed else 0


def _as_json(document: object) -> object:
    return plain(msgspec.to_builtins(document))


def _require(store: Store, project: str) -> None:
    with store.reading() as connection:
        if not runs.of_project(connection, project, limit=1):
            known = ", ".join(sorted(runs.by_project(connection))[:10]) or "none"
            raise NoProjectError(f"there is no run in project {project[:80]!r}; projects with runs: {known}")
