"""How alembic reaches the database: by the connection that migrate() opened."""

from alembic import context

from ammeter_server.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
