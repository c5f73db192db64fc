"""Command line of ammeter-server.

Commands: serve, migrate, token, audit, run, storage, report, readiness, notify, runbooks and demo.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from ammeter.redaction import Redactor
from ammeter_server.auth import tokens
from ammeter_server.auth.tokens import TokenError
from ammeter_server.cli import notify, projects, run_deletion, schema, storage
from ammeter_server.cli import tokens as token_command
from ammeter_server.cli.options import channel_options, command, database_option
from ammeter_server.config import values
from ammeter_server.config.settings import PREFIX, READERS, Settings, SettingsError, from_environment
from ammeter_server.db import DatabaseError, Store, StoreAwayError, StoreFullError, connect

_redactor = Redactor(remembers=False)

PLAIN_OPTIONS = ("database_url", "host", "port", "public_url", "tls_cert", "tls_key")
"""Settings that an option of the same name overrides. --notify and --alertmanager override their settings too."""


class RefusedError(Exception):
    """A command cannot be executed; the message has the reason and the remedy."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0, 2 for wrong arguments or settings, 130 after an interrupt; `demo` has own codes."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.command(arguments)
    except (
        RefusedError,
        SettingsError,
        TokenError,
        schema.SchemaError,
        run_deletion.NoRunError,
        projects.NoProjectError,
    ) as error:
        print(f"ammeter-server: {_redactor.text(str(error))}", file=sys.stderr)
        return 2
    except (StoreAwayError, StoreFullError, DatabaseError) as error:
        reason = schema.explain(error, _settings(arguments).database_url)
        print(f"ammeter-server: {_redactor.text(reason)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def serve(arguments: argparse.Namespace) -> int:
    """Runs the collector until it is stopped."""
    import uvicorn

    from ammeter_server.app import create_app
    from ammeter_server.http import server
    from ammeter_server.process import cpu_affinity, logging, memory

    settings = _settings(arguments)
    schema.prepare(settings, for_collector=True)
    app = create_app(settings)
    tokens.check_guarded(settings, app.state.context.store)
    memory.configure()
    count = len(app.state.judge_worker.outbox.channels)
    channels = f"{count} channel{'s' * (count != 1)}" if count else "no channel: incidents are on the page only"
    print(f"Ammeter collector at {settings.page_url} ({channels})", flush=True)
    logging.write_to_standard_error()
    logging.dump_stacks_on_signal()
    server.raise_file_limit()
    if settings.cores == "one":
        cpu_affinity.keep_on_one_core()
    uvicorn.Server(server.config(app, settings)).run()
    return 0


def migrate(arguments: argparse.Namespace) -> int:
    """Migrates the database to the newest schema, or back to an earlier one."""
    database_url = _settings(arguments).database_url
    schema.migrate(database_url, arguments.back_to, confirmed=arguments.yes, as_json=arguments.json)
    return 0


def with_settings(
    action: Callable[[Store, Settings, argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Wraps a command on the database that returns its exit code; checks and migrates the schema first."""

    def run(arguments: argparse.Namespace) -> int:
        settings = _settings(arguments)
        schema.prepare(settings)
        store = connect(settings.database_url)
        try:
            return action(store, settings, arguments)
        finally:
            store.close()

    return run


def with_store(action: Callable[[Store, argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """Wraps a command on the database that needs no settings and always succeeds."""

    def run(store: Store, _: Settings, arguments: argparse.Namespace) -> int:
        action(store, arguments)
        return 0

    return with_settings(run)


def test_notify(arguments: argparse.Namespace) -> int:
    """Sends a test message to every channel."""
    try:
        return notify.test(_settings(arguments), arguments)
    except notify.MixedError as error:
        raise RefusedError(str(error)) from error


def write_runbooks(arguments: argparse.Namespace) -> int:
    """Writes the runbooks as a folder of plain pages."""
    from ammeter_server.ops import runbook_pages

    try:
        count = runbook_pages.write(Path(arguments.folder))
    except OSError as error:
        raise RefusedError(f"FOLDER is {arguments.folder!r}: {error}; use a writable folder") from error
    if arguments.json:
        print(json.dumps({"folder": arguments.folder, "runbooks": count}))
    else:
        print(f"{count} runbooks are in {arguments.folder}; set AMMETER_SERVER_RUNBOOK_URL to their address")
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Demonstrates the whole data path with one broken run."""
    from ammeter_server.cli import demo as demonstration
    from ammeter_server.cli.demo.processes import CannotShowError

    try:
        return demonstration.run(arguments.training, once=arguments.once)
    except CannotShowError as error:
        raise RefusedError(str(error)) from error
    except OSError as error:
        raise RefusedError(
            f"the demo cannot write its files ({error}); set TMPDIR to a folder with free space"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter-server",
        description="The collector of Ammeter: it stores runs, judges them and notifies people.",
        epilog="Commands read the settings of the collector from variables AMMETER_SERVER_...; "
        "`ammeter-server COMMAND --help` describes its options. Begin with `ammeter-server serve`.",
    )
    parser.add_argument("--version", action="version", version=f"ammeter-server {version('ammeter-server')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serving = command(commands, "serve", "Run the collector.")
    serving.epilog = f"Settings without an option: {', '.join(_variables_without_option())}"
    serving.set_defaults(command=serve)
    database_option(serving)
    serving.add_argument("--host", help="address to listen on (AMMETER_SERVER_HOST, 127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (AMMETER_SERVER_PORT, 8480)")
    channel_options(serving)
    serving.add_argument("--tls-cert", metavar="FILE", help="PEM file of the certificate and its chain; enables TLS")
    serving.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")

    migrating = command(
        commands, "migrate", "Migrate the database to this version's schema, or back to an earlier one."
    )
    migrating.set_defaults(command=migrate)
    migrating.add_argument("--back-to", metavar="SCHEMA", help="an earlier schema, such as 0003, for an older version")
    migrating.add_argument("--yes", action="store_true", help="with --back-to: accept the listed losses")
    migrating.add_argument("--json", action="store_true", help="one object")
    database_option(migrating)

    _token_commands(command(commands, "token", "Create, list and revoke tokens."))

    auditing = command(commands, "audit", "Print the audit log, newest first.")
    auditing.set_defaults(command=with_store(token_command.show_audit))
    auditing.add_argument("--json", action="store_true", help="one object per line")
    database_option(auditing)

    running = command(commands, "run", "Delete runs.")
    deleting = command(running.add_subparsers(required=True, metavar="ACTION"), "delete", "Delete a run permanently.")
    deleting.set_defaults(command=with_store(run_deletion.delete))
    deleting.add_argument("run", metavar="ID", help="its id, from the address of its page")
    deleting.add_argument("--json", action="store_true", help="one object")
    database_option(deleting)

    measuring = command(commands, "storage", "Print the size of each part of the database.")
    measuring.set_defaults(command=with_store(storage.show))
    measuring.add_argument("--json", action="store_true", help="one object")
    database_option(measuring)

    _project_commands(commands)

    notifying = command(commands, "notify", "Test channels.")
    testing = command(
        notifying.add_subparsers(required=True, metavar="ACTION"), "test", "Send a test message to every channel."
    )
    testing.set_defaults(command=test_notify)
    testing.add_argument("--prometheus", metavar="URL", help="fail if this Prometheus sends alerts for incidents too")
    testing.add_argument(
        "--severity",
        choices=("page", "ticket"),
        default="ticket",
        help="of the message: page notifies the person on call",
    )
    testing.add_argument("--json", action="store_true", help="one object per line")
    channel_options(testing)

    writing = command(
        commands, "runbooks", "Write the runbooks as static pages, for the time when the collector is down."
    )
    writing.set_defaults(command=write_runbooks)
    writing.add_argument("folder", metavar="FOLDER", help="target folder; created if it is missing")
    writing.add_argument("--json", action="store_true", help="one object")

    showing = command(commands, "demo", "Train a model with a planted fault, and show how it is found.")
    showing.set_defaults(command=demo)
    showing.add_argument("--once", action="store_true", help="end after the run: 0 if the fault is found, else 1")
    showing.add_argument("training", nargs="*", metavar="-- CMD", help="your own training command")
    return parser


def _variables_without_option() -> list[str]:
    """Names of the settings that no option of `serve` sets."""
    with_option = {*PLAIN_OPTIONS, "notify", "alertmanagers"}
    return [PREFIX + name for field, (name, _) in READERS.items() if field not in with_option]


def _token_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    creating = command(actions, "create", "Print a new token, which is shown only once.")
    creating.set_defaults(command=with_store(token_command.create))
    creating.add_argument("name", help="its purpose")
    creating.add_argument("--scopes", default="ingest,read", help="some of ingest, read, admin (ingest,read)")
    creating.add_argument("--project", help="the only project that it has access to")
    creating.add_argument("--expires", metavar="WHEN", help="30d, 12h, 45m, or a future day in UTC (never)")
    listing = command(actions, "list", "List tokens without their secrets.")
    listing.set_defaults(command=with_store(token_command.show))
    listing.add_argument("--json", action="store_true", help="one object per line")
    revoking = command(actions, "revoke", "Revoke a token and the page sessions that it opened.")
    revoking.set_defaults(command=with_store(token_command.revoke))
    revoking.add_argument("name", help="its name, as printed by list")
    for action in (creating, revoking):
        action.add_argument("--json", action="store_true", help="one object")
    for action in (creating, listing, revoking):
        database_option(action)


def _project_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    reporting = command(commands, "report", "Print the weekly report of a project.")
    reporting.set_defaults(command=with_settings(projects.report))
    length = reporting.add_mutually_exclusive_group()
    length.add_argument(
        "--days", type=projects.days, default=7, metavar="N", help="length of the period, which ends now (7)"
    )
    length.add_argument("--week", action="store_const", dest="days", const=7, help="seven days, the default")
    reporting.add_argument("--send", action="store_true", help="also mail it to every mail channel of the project")
    checking = command(commands, "readiness", "Check whether a project is ready for production: 0 if it is, else 1.")
    checking.set_defaults(command=with_settings(projects.check_readiness))
    for adding in (reporting, checking):
        adding.add_argument("project", metavar="PROJECT")
        adding.add_argument("--json", action="store_true", help="one object")
        database_option(adding)


def _settings(arguments: argparse.Namespace) -> Settings:
    options: dict[str, object] = {name: getattr(arguments, name, None) for name in PLAIN_OPTIONS}
    for option, name in (("notify", "notify"), ("alertmanager", "alertmanagers")):
        urls = getattr(arguments, option, None)
        options[name] = values.urls(" ".join(urls)) if urls else None
    return from_environment(options)


if __name__ == "__main__":
    sys.exit(main())
