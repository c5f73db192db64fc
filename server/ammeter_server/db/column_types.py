"""Column types of the tables, portable between SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Dialect, Text
from sqlalchemy.types import TypeDecorator

from ammeter_server.db.json_safe import plain


class Document(TypeDecorator[Any]):
    """JSON stored as text.

    plain() converts values without a JSON type before they are written.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(plain(value)).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)


def text(name: str, default: str | None = "") -> Column[str]:
    return Column(name, Text, nullable=default is None, default=default)


def integer(name: str, default: int | None = 0) -> Column[int]:
    return Column(name, BigInteger, nullable=default is None, default=default)


def flag(name: str, default: bool | None = False) -> Column[bool]:
    return Column(name, Boolean, nullable=default is None, default=default)


def document(name: str) -> Column[Any]:
    """A column with a JSON object; {} by default."""
    return Column(name, Document, nullable=False, default=dict)


def key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)
