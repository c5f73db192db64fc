"""Command line of ammeter-server.

Commands: serve, migrate, token, audit, run, storage, notify, runbooks and demo.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from ammeter.redaction import Redactor
from ammeter_server.auth import tokens
from ammeter_server.auth.tokens import TokenError
from ammeter_server.cli import notify, run_deletion, storage
from ammeter_server.cli import tokens as token_command
from ammeter_server.config.settings import Settings, SettingsError, from_environment, split_urls
from ammeter_server.db import (
    DatabaseError,
    Store,
    StoreAwayError,
    StoreFullError,
    connect,
    migrations,
    permissions,
    reason_of,
)
from ammeter_server.db.engine import database_file, without_password

_redactor = Redactor(remembers=False)


class RefusedError(Exception):
    """A command cannot be executed; the message gives the reason to the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        The exit code: 0 success, 2 wrong arguments or settings, 130 an interrupt. `demo` has its own codes.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    asked = _parser().parse_args(words)
    try:
        code: int = asked.command(asked)
    except (RefusedError, SettingsError, TokenError, run_deletion.NoRunError) as error:
        print(f"ammeter-server: {_redactor.text(str(error))}", file=sys.stderr)
        return 2
    except (StoreAwayError, StoreFullError, DatabaseError) as error:
        print(f"ammeter-server: {_redactor.text(_of_database(error, _settings(asked).database_url))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def serve(asked: argparse.Namespace) -> int:
    """Runs the collector until it is stopped."""
    import uvicorn

    from ammeter_server.app import create_app
    from ammeter_server.http import server
    from ammeter_server.process import cpu_affinity, logging

    settings = _settings(asked)
    _bring_up(settings, to_write=True)
    app = create_app(settings)
    tokens.check_guarded(settings, app.state.context.store)
    _settle_memory()
    count = len(app.state.sweeper.outbox.channels)
    told = f"{count} channel{'s' * (count != 1)}" if count else "no channel: incidents are on the page only"
    print(f"Ammeter collector at {settings.page_url} ({told})", flush=True)
    logging.write_to_standard_error()
    logging.tell_where_it_stands_when_asked()
    server.allow_more_files()
    if settings.cores == "one":
        cpu_affinity.stay()
    uvicorn.Server(server.config(app, settings)).run()
    return 0


M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
LARGE = 2**20
"""Arrays of at least this many bytes have pages of their own. These return to the system when the array is freed. By
default, glibc raises this threshold with each large array that is freed, up to 32 MiB, and then keeps the memory of the
segments of a compaction."""

ARENAS = 2
"""Number of malloc arenas. With one arena per thread, each keeps its own peak of memory."""


def _settle_memory() -> None:
    """Excludes the objects that exist now from garbage collection, and makes collections rarer.

    These objects live as long as the process. Each request creates hundreds of objects, which reference counting frees
    without the collector. Otherwise a collection of the 130,000 objects of a collector without a run stops every thread
    for a tenth of a second or more from time to time. The memory use is the same.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with suppress(OSError, AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_ARENA_MAX, ARENAS)


def migrate(asked: argparse.Namespace) -> int:
    """Migrates the database to the newest schema, or back to an earlier one."""
    store = connect(_settings(asked).database_url)
    try:
        before = _schema_version(store)
        if asked.back_to is None:
            migrations.migrate(store)
        else:
            _go_back(store, before, asked.back_to, asked.yes)
        print(f"the database has schema {migrations.current(store)} (before: {before})")
    finally:
        store.close()
    return 0


def _go_back(store: Store, before: str | None, version: str, sure: bool) -> None:
    """Prints the data that is lost, and migrates back if the user has confirmed it."""
    try:
        lost = migrations.downgrade_losses(before, version)
    except ValueError as error:
        raise RefusedError(f"--back-to is {version!r}: {error}") from error
    print(f"the downgrade from schema {before} to {version} loses:", *lost, sep="\n  ")
    if not sure:
        raise RefusedError(
            "nothing was changed. Stop every collector of this database, make a backup, and repeat the command with "
            "--yes; then start the older version: this version migrates SQLite to its own schema again"
        )
    migrations.downgrade(store, version)


def with_store(act: Callable[[Store, argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """Wraps a command on the database; checks and migrates the schema first."""

    def run(asked: argparse.Namespace) -> int:
        settings = _settings(asked)
        _bring_up(settings)
        store = connect(settings.database_url)
        try:
            act(store, asked)
        finally:
            store.close()
        return 0

    return run


def test_notify(asked: argparse.Namespace) -> int:
    """Sends a test message to every channel."""
    try:
        return notify.test(_settings(asked), asked)
    except notify.MixedError as error:
        raise RefusedError(str(error)) from error


def write_runbooks(asked: argparse.Namespace) -> int:
    """Writes the runbooks as a folder of plain pages."""
    from ammeter_server.ops import runbook_pages

    try:
        count = runbook_pages.write(Path(asked.folder))
    except OSError as error:
        raise RefusedError(f"FOLDER is {asked.folder!r}: {error}; name one that can be written") from error
    print(f"{count} runbooks are in {asked.folder}; name their address in AMMETER_SERVER_RUNBOOK_URL")
    return 0


def demo(asked: argparse.Namespace) -> int:
    """Demonstrates the whole data path with one broken run."""
    from ammeter_server.cli import demo as show
    from ammeter_server.cli.demo.processes import CannotShowError

    try:
        return show.run(asked.training, once=asked.once)
    except CannotShowError as error:
        raise RefusedError(str(error)) from error
    except OSError as error:
        raise RefusedError(f"the demo cannot write its files ({error}); name a folder with room in TMPDIR") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ammeter-server", description="The collector of Ammeter.")
    parser.add_argument("--version", action="version", version=f"ammeter-server {version('ammeter-server')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serving = command(commands, "serve", "Run the collector.")
    serving.set_defaults(command=serve)
    _database_option(serving)
    serving.add_argument("--host", help="address to listen on (AMMETER_SERVER_HOST, 127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (AMMETER_SERVER_PORT, 8480)")
    _channel_options(serving)
    serving.add_argument("--tls-cert", metavar="FILE", help="PEM file of the certificate and its chain, to speak TLS")
    serving.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")

    migrating = command(
        commands, "migrate", "Migrate the database to this version's schema, or back to an earlier one."
    )
    migrating.set_defaults(command=migrate)
    migrating.add_argument("--back-to", metavar="SCHEMA", help="an earlier schema, such as 0003, for an older version")
    migrating.add_argument("--yes", action="store_true", help="with --back-to: accept the listed losses")
    _database_option(migrating)

    _token_commands(command(commands, "token", "Handle tokens."))

    auditing = command(commands, "audit", "Print what people did, the last first.")
    auditing.set_defaults(command=with_store(token_command.show_audit))
    auditing.add_argument("--json", action="store_true", help="one object per line")
    _database_option(auditing)

    running = command(commands, "run", "Handle runs.")
    deleting = command(running.add_subparsers(required=True, metavar="ACTION"), "delete", "Delete a run for good.")
    deleting.set_defaults(command=with_store(run_deletion.delete))
    deleting.add_argument("run", metavar="ID", help="its id, as its page's address has it")
    _database_option(deleting)

    measuring = command(commands, "storage", "Print what takes the room in the database.")
    measuring.set_defaults(command=with_store(storage.show))
    measuring.add_argument("--json", action="store_true", help="one object")
    _database_option(measuring)

    notifying = command(commands, "notify", "Handle channels.")
    testing = command(
        notifying.add_subparsers(required=True, metavar="ACTION"), "test", "Send a test message to every channel."
    )
    testing.set_defaults(command=test_notify)
    testing.add_argument("--prometheus", metavar="URL", help="refuse when this Prometheus pages for incidents too")
    testing.add_argument(
        "--severity", choices=("page", "ticket"), default="ticket", help="of the message: page rings whoever is paged"
    )
    testing.add_argument("--json", action="store_true", help="one object per line")
    _channel_options(testing)

    writing = command(
        commands, "runbooks", "Write the runbooks as plain pages, to be read while the collector is down."
    )
    writing.set_defaults(command=write_runbooks)
    writing.add_argument("folder", metavar="FOLDER", help="where to; made if it is not there")

    showing = command(commands, "demo", "Train a model that breaks on purpose, and watch it being noticed.")
    showing.set_defaults(command=demo)
    showing.add_argument("--once", action="store_true", help="end after the run: 0 when the fault was found, else 1")
    showing.add_argument("training", nargs="*", metavar="-- CMD", help="a training command of your own")
    return parser


def command(of: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    return of.add_parser(name, help=text, description=text)


def _token_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    creating = command(actions, "create", "Print a new token; it is shown this once.")
    creating.set_defaults(command=with_store(token_command.create))
    creating.add_argument("name", help="what it is for")
    creating.add_argument("--scopes", default="ingest,read", help="some of ingest, read, admin (ingest,read)")
    creating.add_argument("--project", help="the only project that it reaches")
    creating.add_argument("--expires", metavar="WHEN", help="30d, 12h, 45m, or a day to come in UTC (never)")
    listing = command(actions, "list", "Print the tokens there are, without what they are.")
    listing.set_defaults(command=with_store(token_command.show))
    listing.add_argument("--json", action="store_true", help="one object per line")
    revoking = command(actions, "revoke", "Make a token unknown, and end the page's sessions that it opened.")
    revoking.set_defaults(command=with_store(token_command.revoke))
    revoking.add_argument("name", help="its name, as list prints it")
    for action in (creating, listing, revoking):
        _database_option(action)


def _channel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--notify", action="append", metavar="URL", help="Apprise URL to tell; may be given again")
    parser.add_argument(
        "--alertmanager", action="append", metavar="URL", help="Alertmanager to post to; may be given again"
    )
    parser.add_argument("--public-url", metavar="URL", help="how people reach the page, for links")


def _database_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database-url", metavar="URL", help="sqlite:////file or postgresql://... (a file in ~/.ammeter)"
    )


def _settings(asked: argparse.Namespace) -> Settings:
    names = ("database_url", "host", "port", "public_url", "tls_cert", "tls_key")
    given: dict[str, object] = {name: getattr(asked, name, None) for name in names}
    for option, name in (("notify", "notify"), ("alertmanager", "alertmanagers")):
        urls = getattr(asked, option, None)
        given[name] = split_urls(" ".join(urls)) if urls else None
    return from_environment(given)


def _bring_up(settings: Settings, *, to_write: bool = False) -> None:
    """Migrates SQLite; requires the newest schema in any other database.

    Args:
        to_write: Also checks that the database grants all permissions that a collector needs.
    """
    store = connect(settings.database_url)
    try:
        found = _schema_version(store)
        if store.is_sqlite:
            migrations.migrate(store)
        elif found != migrations.newest():
            wanted = migrations.newest()
            raise RefusedError(f"the database has schema {found}, not {wanted}; run `ammeter-server migrate`")
        if to_write:
            permissions.check(store)
    finally:
        store.close()


def _schema_version(store: Store) -> str | None:
    """The schema version of the database, None if it is empty.

    Raises:
        RefusedError: The schema belongs to a newer version of Ammeter.
    """
    found = migrations.current(store)
    if found is not None and not migrations.is_known(found):
        raise RefusedError(migrations.unknown_version_error(found))
    return found


def _of_database(error: Exception, url: str) -> str:
    """Explains why a command cannot use this database."""
    shown = f"AMMETER_SERVER_DATABASE_URL is {without_password(url)!r}"
    if isinstance(error, DatabaseError):
        reason = f"the database refuses what it was asked to do ({reason_of(error)}); is it one of the collector's own?"
    elif type(error) is StoreAwayError:
        remedy = "see to its disk and to who else uses it" if database_file(url) else "start it, or mend the URL"
        reason = f"the database does not answer ({error.reason or error}); {remedy}"
    else:
        reason = str(error)
    return f"{shown}: {reason}"


if __name__ == "__main__":
    sys.exit(main())
