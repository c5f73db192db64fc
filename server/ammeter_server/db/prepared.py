"""Statements compiled once and passed to the driver as text with values.

For statements that run with every batch, judgement or request of a page. SQLAlchemy needs 0.1 ms to build and look up
a statement, and a batch of one step runs five of them. That is longer than all verdicts take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import ClauseElement

from ammeter_server.db.engine import insert


@dataclass(frozen=True)
class Prepared:
    """A statement with bind parameters.

    Values and rows keep the driver's types; SQLAlchemy converts neither.
    """

    statement: ClauseElement
    _texts: dict[str, tuple[str, Sequence[str] | None]] = field(default_factory=dict)

    def one(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Runs the statement and returns the first row, or None."""
        row: tuple[Any, ...] | None = self._run(connection, values).fetchone()
        return row

    def all(self, connection: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Runs the statement and returns all rows."""
        rows: list[tuple[Any, ...]] = self._run(connection, values).fetchall()
        return rows

    def do(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self._run(connection, values)

    def _run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        dialect = connection.dialect
        text, order = self._texts.get(dialect.name) or self._compiled(connection)
        driver: Any = connection.connection.driver_connection
        try:
            return driver.execute(text, [values[name] for name in order] if order else values)
        except dialect.loaded_dbapi.Error as error:
            raise DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error

    def _compiled(self, connection: Connection) -> tuple[str, Sequence[str] | None]:
        compiled = self.statement.compile(dialect=connection.dialect)
        prepared = str(compiled), getattr(compiled, "positiontup", None)
        self._texts[connection.dialect.name] = prepared
        return prepared


@dataclass(frozen=True)
class PreparedRow:
    """Inserts a whole row, column -> value, or updates the row with the same key.

    Attributes:
        changed: Receives the table's columns and the new values, and returns the values of the update. None: the update
            writes all columns of the new row.
    """

    table: Table
    changed: Callable[[Any, Any], Mapping[str, Any]] | None = None
    _prepared: dict[str, tuple[Prepared, Mapping[str, Callable[[Any], Any] | None]]] = field(default_factory=dict)

    def put(self, connection: Connection, row: Mapping[str, Any]) -> None:
        prepared, writers = self._prepared.get(connection.dialect.name) or self._prepare(connection)
        prepared.do(connection, {name: write(row[name]) if write else row[name] for name, write in writers.items()})

    def _prepare(self, connection: Connection) -> tuple[Prepared, Mapping[str, Callable[[Any], Any] | None]]:
        dialect, columns = connection.dialect, self.table.columns
        new = insert(connection, self.table)
        new_values = {column.name: new.excluded[column.name] for column in columns if not column.primary_key}
        changed = new_values if self.changed is None else self.changed(columns, new.excluded)
        prepared = Prepared(new.on_conflict_do_update(index_elements=list(self.table.primary_key), set_=changed))
        writers = {column.name: column.type.bind_processor(dialect) for column in columns}
        self._prepared[dialect.name] = prepared, writers
        return prepared, writers
