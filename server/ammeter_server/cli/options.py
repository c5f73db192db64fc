"""Commands and options that several commands of ammeter-server have."""

from __future__ import annotations

import argparse

from ammeter_server.config.settings import PREFIX


def command(of: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    """Adds a command with one description in both places."""
    return of.add_parser(name, help=text, description=text)


def channel_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of channels, which override the settings."""
    for option, text, variable in (
        ("--notify", "Apprise URL of a channel", "NOTIFY"),
        ("--alertmanager", "URL of an Alertmanager", "ALERTMANAGER_URL"),
    ):
        parser.add_argument(option, action="append", metavar="URL", help=f"{text}; repeatable ({PREFIX}{variable})")
    parser.add_argument(
        "--public-url", metavar="URL", help="address of the page for people, used in links (AMMETER_SERVER_PUBLIC_URL)"
    )


def database_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option of the database, which overrides the setting."""
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="sqlite:////file or postgresql://... (AMMETER_SERVER_DATABASE_URL, ~/.ammeter/collector.db)",
    )
