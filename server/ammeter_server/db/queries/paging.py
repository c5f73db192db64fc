"""Pages of a list, limited in rows and in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func
from sqlalchemy.types import BigInteger

MAX_PAGE_BYTES = 4 * 2**20
"""Limit for the runs' own data on one page: a thousand configs of 256 KB would make a response that takes a
gigabyte."""

ROWS_PER_READ = 51
"""Rows per round trip to PostgreSQL: a page of a hundred rows and the row after it need two. Rows beyond the byte limit
are read and then left out."""


def page(
    connection: Connection, query: Select[Any], size: int, *sized_columns: ColumnElement[Any]
) -> tuple[Sequence[Row[Any]], bool]:
    """Returns the first `size` rows of a query, and whether there are more.

    Returns fewer rows, but at least one, if `sized_columns` have more than MAX_PAGE_BYTES.
    """
    weight = sum(
        (func.length(column, type_=BigInteger) for column in sized_columns[1:]),
        func.length(sized_columns[0], type_=BigInteger),
    )
    limited = query.add_columns(weight.label("weight")).limit(size + 1).execution_options(yield_per=ROWS_PER_READ)
    rows, page_bytes = list[Row[Any]](), 0
    with connection.execute(limited) as result:
        for row in result:
            page_bytes += row.weight
            if rows and (len(rows) == size or page_bytes > MAX_PAGE_BYTES):
                return rows, True
            rows.append(row)
    return rows, False
