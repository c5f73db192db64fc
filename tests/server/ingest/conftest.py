"""A running collector for the tests of a file, a sender of a new stream, and an intake that may be busy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.ingest import postponing
from tests.server.ingest.postponing import Taking
from tests.server.ingest.senders import Place, Sender, opened


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("ingest")) as place:
        yield place


@pytest.fixture
def sender(place: Place) -> Sender:
    return Sender(place.client, place.store)


@pytest.fixture
def taking(tmp_path: Path) -> Iterator[Taking]:
    taking = postponing.opened(f"sqlite:///{tmp_path / 'collector.db'}")
    yield taking
    taking.context.store.close()
