"""A page of a list: as many rows as were asked for, and no more bytes than an answer may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func
from sqlalchemy.types import BigInteger

MAX_PAGE_BYTES = 4 * 2**20
"""Of what runs said, in one page: a thousand configs of a quarter of a megabyte would take a gigabyte to tell."""

ROWS_PER_READ = 51
"""Rows that are read together, which is a way to PostgreSQL and back: two for a page of a hundred and what is behind
it. What is beyond the limit is read before it is left out."""


def page(
    connection: Connection, query: Select[Any], size: int, *said: ColumnElement[Any]
) -> tuple[Sequence[Row[Any]], bool]:
    """The first rows of a query, and whether there are more: `size` of them, fewer where these columns hold more than
    MAX_PAGE_BYTES, one at least."""
    weight = sum((func.length(column, type_=BigInteger) for column in said[1:]), func.length(said[0], type_=BigInteger))
    asked = query.add_columns(weight.label("weight")).limit(size + 1).execution_options(yield_per=ROWS_PER_READ)
    rows, held = list[Row[Any]](), 0
    with connection.execute(asked) as found:
        for row in found:
            held += row.weight
            if rows and (len(rows) == size or held > MAX_PAGE_BYTES):
                return rows, True
            rows.append(row)
    return rows, False
