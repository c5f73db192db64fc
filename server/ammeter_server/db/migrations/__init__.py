"""The database's shape over time. `ammeter-server migrate` brings any database to the newest; SQLite goes by itself."""

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
    """Brings the database to a shape, the newest or a later one than it has. Raises what the database raises."""
    with store.writing() as connection:
        engine.alone(connection)
        command.upgrade(_config(connection), shape)
        citus.distribute(connection)
    partitions.prepare(store, day_of(time.time_ns()))


def go_back(store: Store, shape: str) -> None:
    """Brings the database to an earlier shape, "base" for none at all, and keeps what that has room for."""
    with store.writing() as connection:
        engine.alone(connection)
        command.downgrade(_config(connection), shape)


def lost(before: str | None, shape: str) -> list[str]:
    """What going back from one shape to an earlier one takes away, the newest first. ValueError: no such one."""
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
    """The shape the database has; None when it is empty. Where it says several, all of them, which is no known one."""
    with store.reading() as connection:
        return " and ".join(sorted(MigrationContext.configure(connection).get_current_heads())) or None


def is_known(shape: str) -> bool:
    """Whether this version of the collector knows the shape; a newer one's it does not."""
    return shape in {revision.revision for revision in ScriptDirectory.from_config(_config()).walk_revisions()}


def unknown(shape: str) -> str:
    """What to say of a database whose shape this version does not know."""
    return (
        f"the database has shape {shape[:80]!r}, which this version does not know (its newest is {newest()}): a newer "
        f"version has made it; use that one, or go back with it: `ammeter-server migrate --back-to {newest()}`"
    )


def newest() -> str | None:
    """The shape this version of the collector works with."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
