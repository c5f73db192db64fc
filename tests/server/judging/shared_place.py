"""One database with the collectors on it, and ranks and lives of runs that meet there."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import select

from ammeter_server.db import Store
from ammeter_server.db.tables import runs
from tests.server.feeding import Stream, train

RANKS = 8


@dataclass(frozen=True)
class Place:
    """One database, and a client for each collector on it."""

    clients: Sequence[httpx.Client]
    store: Store

    def client(self, number: int) -> httpx.Client:
        return self.clients[number % len(self.clients)]

    def rows(self, table: Any, **wanted: Any) -> list[Any]:
        query = select(table).where(*(table.c[name] == value for name, value in wanted.items()))
        with self.store.reading() as connection:
            return list(connection.execute(query))

    def state(self, run: str) -> str:
        return str(self.rows(runs, id=run)[0].state)


def ranks(place: Place, count: int = RANKS, **fields: Any) -> list[Stream]:
    run = str(uuid.uuid4())
    return [
        Stream(place.client(rank), run=run, rank=rank, world_size=count, project=run, **fields) for rank in range(count)
    ]


def all_at_once(acts: Sequence[Callable[[], object]]) -> None:
    """Does these in threads that begin together. Raises what one of them raised."""
    together, wrong = threading.Barrier(len(acts)), []

    def do(act: Callable[[], object]) -> None:
        together.wait()
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - reported below
            wrong.append(error)

    threads = [threading.Thread(target=do, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def life(place: Place, run: str, began: int, number: int = 0, **fields: Any) -> Stream:
    """A process of the run that began then."""
    stream = Stream(place.client(number), run=run, begin=began, **fields)
    train(stream, 0, 5)
    return stream
