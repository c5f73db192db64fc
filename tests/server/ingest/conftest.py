"""A running collector for the tests of a file, and a sender of a new stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.ingest.senders import Place, Sender, opened


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("ingest")) as place:
        yield place


@pytest.fixture
def sender(place: Place) -> Sender:
    return Sender(place.client, place.store)
