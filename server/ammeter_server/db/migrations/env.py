"""Gives Alembic the connection that migrate() opened."""

from alembic import context

from ammeter_server.db import step_tables  # noqa: F401 - its tables belong to the metadata
from ammeter_server.db.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
