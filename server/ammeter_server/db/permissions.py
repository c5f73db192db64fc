"""Checks that the database grants the collector's privileges, before they are needed."""

from __future__ import annotations

from sqlalchemy import Connection, text

from ammeter_server.db.engine import Store
from ammeter_server.db.errors import StoreRefusingError
from ammeter_server.db.step_tables import PARTITIONED_TABLES
from ammeter_server.db.tables import metadata

PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")


def check(store: Store) -> None:
    """Raises StoreRefusingError if the database is read-only or a privilege is missing."""
    with store.writing() as connection:  # raises for a read-only file of SQLite
        if not store.is_sqlite:
            _check_primary(connection)
            _check_tables(connection)


def _check_primary(connection: Connection) -> None:
    if connection.execute(text("SELECT current_setting('transaction_read_only')")).scalar_one() == "on":
        standby = connection.execute(text("SELECT pg_is_in_recovery()")).scalar_one()
        remedy = "it is a standby; name the primary server" if standby else "allow writes in its configuration"
        raise StoreRefusingError(f"the database is read-only: {remedy}")


def _check_tables(connection: Connection) -> None:
    """Checks the privileges on all tables, and the ownership of partitioned ones.

    The collector creates partitions for new days, which requires ownership of their table.
    """
    user = connection.execute(text("SELECT current_user")).scalar_one()
    allowed = text("SELECT has_table_privilege(to_regclass(:name), :right)")
    for table in metadata.tables:
        for right in PRIVILEGES:
            if connection.execute(allowed, {"name": table, "right": right}).scalar_one() is False:
                remedy = f"GRANT {', '.join(PRIVILEGES)} ON {table} TO {user}"
                raise StoreRefusingError(f"the user {user!r} lacks the privilege {right} on table {table}; {remedy}")
    owned = text("SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)")
    for partitioned in PARTITIONED_TABLES:
        if connection.execute(owned, {"name": partitioned.name}).scalar() is False:
            remedy = (
                f"ALTER TABLE {partitioned.name} OWNER TO {user}, or use the user that ran `ammeter-server migrate`"
            )
            raise StoreRefusingError(
                f"the user {user!r} does not own table {partitioned.name} and cannot create its partitions; {remedy}"
            )
