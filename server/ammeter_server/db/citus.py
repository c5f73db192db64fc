"""Distributes the tables by run where PostgreSQL has the extension Citus.

Runs after the tables were created.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from ammeter_server.db.tables import metadata

DISTRIBUTION_COLUMNS = {"runs": "id", "totals": "project", "audit": "id"}
"""Tables whose distribution column is not called `run`. In `runs` the column `id` is the run's id."""

LOCAL_TABLES = ("totals", "audit")
"""Tables whose rows belong to no run."""

REFERENCE_TABLES = ("baselines", "projects", "tokens")
"""Small tables, read with everything and seldom written, never by ingest: each node gets every write."""


def distribute(connection: Connection) -> list[str]:
    """Distributes the tables that are not distributed yet.

    Returns their names; none without Citus.
    """
    if connection.dialect.name != "postgresql" or not is_installed(connection):
        return []
    distributed = set(connection.execute(text("SELECT logicalrelid::text FROM pg_dist_partition")).scalars())
    missing = [name for name in order() if name not in distributed]
    if "runs" in missing:  # a node cannot check uniqueness across nodes; the ids are unique anyway, see run_ids.py
        connection.execute(text("DROP INDEX IF EXISTS ix_runs_external_id_project"))
    for name in missing:
        connection.execute(text(statement(name)))
    if "runs" in missing:
        connection.execute(text("CREATE INDEX ix_runs_external_id_project ON runs (external_id, project)"))
    return missing


def is_distributed(connection: Connection, table: str) -> bool:
    """Whether Citus has distributed the table."""
    if connection.dialect.name != "postgresql" or not is_installed(connection):
        return False
    query = text("SELECT count(*) FROM pg_dist_partition WHERE logicalrelid::text = :name")
    return bool(connection.execute(query, {"name": table}).scalar_one())


def order() -> list[str]:
    """Returns all tables; a table comes after those that it refers to, and after the one that it is colocated with."""
    first = (*REFERENCE_TABLES, "runs")
    return [*first, *(table.name for table in metadata.sorted_tables if table.name not in first)]


def statement(table: str) -> str:
    """Returns the statement with which Citus distributes the table."""
    if table in REFERENCE_TABLES:
        return f"SELECT create_reference_table('{table}')"
    by = DISTRIBUTION_COLUMNS.get(table, "run")
    colocated = "none" if table in LOCAL_TABLES else "default" if table == "runs" else "runs"
    return f"SELECT create_distributed_table('{table}', '{by}', colocate_with => '{colocated}')"


def is_installed(connection: Connection) -> bool:
    """Whether the database, a PostgreSQL, has the extension."""
    query = text("SELECT count(*) FROM pg_extension WHERE extname = 'citus'")
    return bool(connection.execute(query).scalar_one())
