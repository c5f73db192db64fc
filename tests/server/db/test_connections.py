"""Which of the waiting connections of a store a reader gets."""

from __future__ import annotations

from pathlib import Path

from tests.server.keeping import database


def test_a_reader_gets_the_connection_that_was_used_last(tmp_path: Path) -> None:
    with database("sqlite", tmp_path) as store:
        with store.reading() as later:
            with store.reading() as earlier:
                first = earlier.connection.driver_connection
            last = later.connection.driver_connection
        assert first is not last
        with store.reading() as connection:
            assert last is connection.connection.driver_connection
