"""The versions of the database schema, called shapes, and the migrations between them.

`ammeter-server migrate` brings any database to the newest version. SQLite databases migrate automatically.
"""

from __future__ import annotations

import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from ammeter_server.db import Connection, Store, citus, engine, partitions
from ammeter_server.db.step_tables import day_of


def migrate(store: Store, shape: str = "head") -> None:
    """Upgrades the database to a schema version, by default the newest.

    Errors of the database pass unchanged.
    """
    with store.writing() as connection:
        engine.alone(connection)
        command.upgrade(_config(connection), shape)
        citus.distribute(connection)
    partitions.prepare(store, day_of(time.time_ns()))


def go_back(store: Store, shape: str) -> None:
    """Downgrades the database to an earlier schema version; "base" is the empty schema.

    Data that the earlier version has no place for is lost.
    """
    with store.writing() as connection:
        engine.alone(connection)
        command.downgrade(_config(connection), shape)


def lost(before: str | None, shape: str) -> list[str]:
    """Lists the losses of a downgrade, those of the newest version first.

    Raises ValueError if there is no such earlier version.
    """
    steps = list(ScriptDirectory.from_config(_config()).walk_revisions())
    shapes = [step.revision for step in steps]
    there = shapes.index(before) if before in shapes else len(shapes)
    earlier = shapes[there + 1 :]
    if shape not in earlier:
        raise ValueError(
            f"the database has shape {before}; the earlier ones are {', '.join(earlier) or 'not known here'}"
        )
    return [f"{step.revision}: {step.module.GOING_BACK_LOSES}" for step in steps[there : shapes.index(shape)]]


def current(store: Store) -> str | None:
    """Returns the database's schema version; None if it is empty.

    If the database names several, all of them, joined by " and "; no collector knows such a version.
    """
    with store.reading() as connection:
        return " and ".join(sorted(MigrationContext.configure(connection).get_current_heads())) or None


def is_known(shape: str) -> bool:
    """Whether this version of the collector knows the schema version.

    Those of newer collectors are unknown.
    """
    return shape in {revision.revision for revision in ScriptDirectory.from_config(_config()).walk_revisions()}


def unknown(shape: str) -> str:
    """Error message for a database whose schema version is unknown here."""
    return (
        f"the database has shape {shape[:80]!r}, which this version does not know (its newest is {newest()}): a newer "
        f"version has made it; use that one, or go back with it: `ammeter-server migrate --back-to {newest()}`"
    )


def newest() -> str | None:
    """The schema version that this version of the collector uses."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
