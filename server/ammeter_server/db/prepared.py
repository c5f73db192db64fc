"""Statements compiled once and passed to the driver as text with values.

For statements that run with every batch, judgement or request of a page. SQLAlchemy needs 0.1 ms to build and look up
a statement. A batch of one step needs five of them, a request for a curve a dozen: that is longer than the verdicts of
the batch take, or unpacking the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, Select, Table, bindparam
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import ClauseElement

from ammeter_server.db.engine import insert

_FETCH_ONE, _FETCH_ALL, _COUNT = methodcaller("fetchone"), methodcaller("fetchall"), attrgetter("rowcount")


class _Compiled(NamedTuple):
    """The text of a statement.

    Attributes:
        order: The names of its parameters by position; None if the text has the names.
        constants: The values of the parameters that nobody passes.
    """

    text: str
    order: Sequence[str] | None
    constants: Mapping[str, Any]


class _RowReader(NamedTuple):
    """Converts the driver's rows.

    Attributes:
        make: Makes a named tuple of the values.
        converters: (place of a column, its converter) for each column that needs one.
    """

    make: Callable[[Sequence[Any]], Any]
    converters: Sequence[tuple[int, Callable[[Any], Any]]]

    def read(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        if not self.converters:
            return list(map(self.make, rows))
        converted = []
        for row in rows:
            values = list(row)
            for place, convert in self.converters:
                values[place] = convert(values[place])
            converted.append(self.make(values))
        return converted


@dataclass(frozen=True)
class Prepared:
    """A statement with bind parameters and constants. A list needs PreparedList.

    Values keep the driver's types; SQLAlchemy does not convert them. A transaction begins with the first statement.
    """

    statement: ClauseElement
    _compiled: dict[str, _Compiled] = field(default_factory=dict)
    _readers: dict[str, _RowReader] = field(default_factory=dict)

    def one(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Runs the statement and returns the first row with the driver's types, or None."""
        row: tuple[Any, ...] | None = self._run(connection, values, _FETCH_ONE)
        return row

    def all(self, connection: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Runs the statement and returns all rows with the driver's types."""
        rows: list[tuple[Any, ...]] = self._run(connection, values, _FETCH_ALL)
        return rows

    def named(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """Runs the statement, a SELECT, and returns all rows as named tuples with the types of their columns."""
        reader = self._readers.get(connection.dialect.name) or self._reader(connection)
        return reader.read(self._run(connection, values, _FETCH_ALL))

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Does the same for the first row; None without one."""
        rows = self.named(connection, values)
        return rows[0] if rows else None

    def do(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Runs the statement and returns the number of rows that it changed."""
        return int(self._run(connection, values, _COUNT))

    def _run(self, connection: Connection, values: Mapping[str, Any], result: Callable[[Any], Any]) -> Any:
        """Returns the result of the cursor. Errors of the statement and of its rows become DBAPIError."""
        if not connection.in_transaction():
            connection.begin()
        dialect = connection.dialect
        text, order, constants = self._compiled.get(dialect.name) or self._compile(connection)
        driver: Any = connection.connection.driver_connection
        values = {**constants, **values} if constants else values
        try:
            return result(driver.execute(text, [values[name] for name in order] if order else values))
        except dialect.loaded_dbapi.Error as error:  # SQLite runs most of a SELECT while its rows are fetched
            is_broken = dialect.is_disconnect(error, driver, None)
            if is_broken:
                connection.invalidate(error)
            raise DBAPIError.instance(
                text, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_broken, dialect=dialect
            ) from error

    def _compile(self, connection: Connection) -> _Compiled:
        statement = self.statement.compile(dialect=connection.dialect)
        constants = {name: value for name, value in statement.params.items() if value is not None}
        compiled = _Compiled(str(statement), getattr(statement, "positiontup", None), constants)
        self._compiled[connection.dialect.name] = compiled
        return compiled

    def _reader(self, connection: Connection) -> _RowReader:
        assert isinstance(self.statement, Select)
        columns, dialect = self.statement.selected_columns, connection.dialect
        make = NamedTuple("Row", [(str(column.key), Any) for column in columns])._make
        converters = [column.type.result_processor(dialect, None) for column in columns]
        named = [(place, convert) for place, convert in enumerate(converters) if convert is not None]
        reader = _RowReader(make, named)
        self._readers[dialect.name] = reader
        return reader


@dataclass(frozen=True)
class PreparedList:
    """A SELECT with one list of values, which build() receives as bind parameters for IN.

    It is compiled for each power of two; a shorter list is filled up with its last value.
    """

    build: Callable[[Sequence[BindParameter[Any]]], Select[Any]]
    _of_size: dict[int, Prepared] = field(default_factory=dict)

    def all(self, connection: Connection, items: Sequence[Any], values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """See Prepared.all. Returns no rows for no items."""
        return self._sized(items).all(connection, self._values(items, values)) if items else []

    def named(self, connection: Connection, items: Sequence[Any], values: Mapping[str, Any]) -> list[Any]:
        """See Prepared.named. Returns no rows for no items."""
        return self._sized(items).named(connection, self._values(items, values)) if items else []

    def _sized(self, items: Sequence[Any]) -> Prepared:
        size = _power_of_two(len(items))
        prepared = self._of_size.get(size)
        if prepared is None:
            prepared = Prepared(self.build([bindparam(f"item_{place}") for place in range(size)]))
            self._of_size[size] = prepared
        return prepared

    def _values(self, items: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
        filled = [*items, *[items[-1]] * (_power_of_two(len(items)) - len(items))]
        return {f"item_{place}": item for place, item in enumerate(filled)} | dict(values)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not below a positive count."""
    return 1 << (count - 1).bit_length()


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
