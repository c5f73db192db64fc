"""Makes frames of pandas and polars, which are found at run time."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from ammeter.recorded.tables import Column, Table, Times, Words
from ammeter.wire.columns import measured


def frame(table: Table, to: str) -> Any:
    """Returns the table as a DataFrame.

    Raises:
        ValueError: the library is unknown.
        ImportError: it is not installed.
    """
    if to not in LIBRARIES:
        raise ValueError(f"to is {to!r}; use one of {', '.join(LIBRARIES)}")
    try:
        library = import_module(to)
    except ImportError as error:
        other = next(name for name in LIBRARIES if name != to)
        raise ImportError(
            f"to={to!r} needs a library that cannot be imported ({error}); "
            f"install it with: pip install {to}, or use to={other!r}"
        ) from error
    series = LIBRARIES[to]
    return library.DataFrame({name: series(library, column) for name, column in table.items()})


def _pandas(pandas: Any, column: Column) -> Any:
    if isinstance(column, Times):
        return pandas.Series(column.nanoseconds.view("datetime64[ns]")).dt.tz_localize("UTC")
    if isinstance(column, Words):
        return pandas.Categorical.from_codes(column.codes, categories=pandas.Index(list(column.words), dtype=object))
    if isinstance(column, list):
        return pandas.Series(column, dtype=object)
    if column.dtype == np.float32:
        return pandas.Series(np.where(measured(column), column, np.float32(np.nan)))
    return pandas.Series(column)


def _polars(polars: Any, column: Column) -> Any:
    if isinstance(column, Times):
        return polars.Series(column.nanoseconds).cast(polars.Datetime("ns", "UTC"))
    if isinstance(column, Words):
        return polars.Series(list(column.words), dtype=polars.String).gather(column.codes).cast(polars.Categorical)
    if isinstance(column, list):
        return polars.Series(column, dtype=polars.String)
    series = polars.Series(column)
    return series.set(polars.Series(~measured(column)), None) if column.dtype == np.float32 else series


LIBRARIES: dict[str, Callable[[Any, Column], Any]] = {"pandas": _pandas, "polars": _polars}
"""Library -> the function that makes its column."""
