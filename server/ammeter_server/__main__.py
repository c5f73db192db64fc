"""The command line: ammeter-server serve | migrate | token | audit | storage | demo."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from ammeter_server import migrations, storage, token_command
from ammeter_server.settings import Settings, SettingsError, from_environment, split_urls
from ammeter_server.store import Store, connect
from ammeter_server.tokens import TokenError


class RefusedError(Exception):
    """Why a command cannot be done, in words for whoever typed it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 0 done, 2 a wrong call or setting; demo says its own."""
    words = list(sys.argv[1:] if argv is None else argv)
    asked = _parser().parse_args(words)
    try:
        code: int = asked.command(asked)
    except (RefusedError, SettingsError, TokenError) as error:
        print(f"ammeter-server: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def serve(asked: argparse.Namespace) -> int:
    """Runs the collector until it is told to stop."""
    import uvicorn

    from ammeter_server import listening, logs
    from ammeter_server.app import create_app

    settings = _settings(asked)
    _bring_up(settings)
    app = create_app(settings)
    _settle_memory()
    told = (
        f"{len(settings.notify)} channel{'s' * (len(settings.notify) != 1)}"
        if settings.notify
        else "no channel: incidents are on the page only"
    )
    print(f"Ammeter collector at {settings.page_url} ({told})", flush=True)
    logs.write_to_standard_error()
    listening.allow_more_files()
    uvicorn.Server(listening.config(app, settings)).run()
    return 0


def _settle_memory() -> None:
    """What was made until now lives as long as the process. Python looks through it no more for what nobody needs, and
    through the rest less often: each request makes hundreds of objects, all of which go by themselves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def migrate(asked: argparse.Namespace) -> int:
    """Brings the database to the newest shape."""
    store = connect(_settings(asked).database_url)
    before = _shape(store)
    migrations.migrate(store)
    print(f"the database has shape {migrations.current(store)} (it had {before})")
    store.close()
    return 0


def with_store(act: Callable[[Store, argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """A command on the database, which is brought up first."""

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


def demo(asked: argparse.Namespace) -> int:
    """Shows the whole way on one broken run."""
    from ammeter_server import demo as show
    from ammeter_server.demo.processes import CannotShowError

    try:
        return show.run(asked.training, once=asked.once)
    except CannotShowError as error:
        raise RefusedError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ammeter-server", description="The collector of Ammeter.")
    parser.add_argument("--version", action="version", version=f"ammeter-server {version('ammeter-server')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serving = command(commands, "serve", "Run the collector.")
    serving.set_defaults(command=serve)
    _database_option(serving)
    serving.add_argument("--host", help="address to listen on (AMMETER_SERVER_HOST, 127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (AMMETER_SERVER_PORT, 8480)")
    serving.add_argument("--notify", action="append", metavar="URL", help="Apprise URL to tell; may be given again")
    serving.add_argument("--public-url", metavar="URL", help="how people reach the page, for links")
    serving.add_argument("--tls-cert", metavar="FILE", help="PEM file of the certificate and its chain, to speak TLS")
    serving.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")

    migrating = command(commands, "migrate", "Bring the database to this version's shape.")
    migrating.set_defaults(command=migrate)
    _database_option(migrating)

    _token_commands(command(commands, "token", "Handle tokens."))

    auditing = command(commands, "audit", "Print what people did, the last first.")
    auditing.set_defaults(command=with_store(token_command.show_audit))
    auditing.add_argument("--json", action="store_true", help="one object per line")
    _database_option(auditing)

    measuring = command(commands, "storage", "Print what takes the room in the database.")
    measuring.set_defaults(command=with_store(storage.show))
    measuring.add_argument("--json", action="store_true", help="one object")
    _database_option(measuring)

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


def _database_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database-url", metavar="URL", help="sqlite:////file or postgresql://... (a file in ~/.ammeter)"
    )


def _settings(asked: argparse.Namespace) -> Settings:
    names = ("database_url", "host", "port", "public_url", "tls_cert", "tls_key")
    given: dict[str, object] = {name: getattr(asked, name, None) for name in names}
    notify = getattr(asked, "notify", None)
    return from_environment({**given, "notify": split_urls(" ".join(notify)) if notify else None})


def _bring_up(settings: Settings) -> None:
    """Migrates SQLite by itself; of any other database it asks that somebody has done it."""
    store = connect(settings.database_url)
    try:
        found = _shape(store)
        if store.is_sqlite:
            migrations.migrate(store)
        elif found != migrations.newest():
            wanted = migrations.newest()
            raise RefusedError(f"the database has shape {found}, not {wanted}; run `ammeter-server migrate`")
    finally:
        store.close()


def _shape(store: Store) -> str | None:
    try:
        return migrations.current(store)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise RefusedError(
            f"AMMETER_SERVER_DATABASE_URL: the database does not answer ({reason}); start it, or mend the URL"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
