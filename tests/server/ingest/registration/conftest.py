"""A collector with tokens of two projects, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ammeter_server.api import live
from tests.server.callers import guarded
from tests.server.databases import postgresql
from tests.server.ingest.registration.projects import Place, tokened


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("database")
    with pytest.MonkeyPatch.context() as patch, guarded(tmp_path_factory.mktemp("senders"), url) as guard:
        patch.setattr(live, "MAX_ANSWER_SECONDS", 0.01)
        yield tokened(guard)
