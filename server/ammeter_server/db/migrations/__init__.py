"""The versions of the database schema and the migrations between them.

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


def migrate(store: Store, version: str = "head") -> None:
    """Upgrades the database to a schema version, by default the newest.

    Errors of the database pass unchanged.
    """
    with store.writing() as connection:
        engine.lock_schema(connection)
        command.upgrade(_config(connection), version)
        citus.distribute(connection)
    partitions.prepare(store, day_of(time.time_ns()))


def downgrade(store: Store, version: str) -> None:
    """Downgrades the database to an earlier schema version; "base" is the empty schema.

    Data that the earlier version has no place for is lost.
    """
    with store.writing() as connection:
        engine.lock_schema(connection)
        command.downgrade(_config(connection), version)


def downgrade_losses(current_version: str | None, version: str) -> list[str]:
    """Lists the losses of a downgrade, those of the newest version first.

    Raises ValueError if there is no such earlier version.
    """
    scripts = list(ScriptDirectory.from_config(_config()).walk_revisions())
    versions = [script.revision for script in scripts]
    position = versions.index(current_version) if current_version in versions else len(versions)
    earlier = versions[position + 1 :]
    if version not in earlier:
        raise ValueError(
            f"the database has schema {current_version}; earlier schemas are {', '.join(earlier) or 'unknown'}"
        )
    return [
        f"{script.revision}: {script.module.DOWNGRADE_LOSES}" for script in scripts[position : versions.index(version)]
    ]


def current(store: Store) -> str | None:
    """Returns the database's schema version; None if it is empty.

    If the database names several, all of them, joined by " and "; no collector knows such a version.
    """
    with store.reading() as connection:
        return " and ".join(sorted(MigrationContext.configure(connection).get_current_heads())) or None


def is_known(version: str) -> bool:
    """Whether this version of the collector knows the schema version.

    Those of newer collectors are unknown.
    """
    return version in {revision.revision for revision in ScriptDirectory.from_config(_config()).walk_revisions()}


def unknown_version_error(version: str) -> str:
    """Error message for a database whose schema version is unknown here."""
    return (
        f"the database has schema {version[:80]!r}, which this version does not know (its newest is {newest()}): "
        f"a newer version created it; use that version, or run `ammeter-server migrate --back-to {newest()}` with it"
    )


def newest() -> str | None:
    """The schema version that this version of the collector uses."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
