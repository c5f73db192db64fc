"""Helpers for tests of tokens: headers with a token, and a collector's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ammeter_server.db import Store, connect
from tests.server.feeding import serving


@dataclass(frozen=True)
class Guarded:
    """A running collector: its client, and its database, in which tokens are created."""

    client: httpx.Client
    store: Store


@contextmanager
def guarded(folder: Path, database: str = "", **settings: Any) -> Iterator[Guarded]:
    with serving(folder, database, **settings) as client:
        store = connect(database or f"sqlite:///{folder / 'collector.db'}")
        try:
            yield Guarded(client, store)
        finally:
            store.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
