"""The database's shape over time. `ammeter-server migrate` brings any database to the newest; SQLite goes by itself."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from ammeter_server.store import Store


def migrate(store: Store) -> None:
    """Brings the database to the newest shape, in one transaction. Raises what the database raises."""
    with store.writing() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def current(store: Store) -> str | None:
    """The shape the database has; None when it is empty."""
    with store.reading() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest() -> str | None:
    """The shape this version of the collector works with."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
