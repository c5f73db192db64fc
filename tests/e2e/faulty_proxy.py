"""A TCP proxy before collectors that loses, cuts, doubles and delays requests, by a seed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

FATES = {
    "carried": 0.82,
    "cut in the request": 0.03,
    "cut in the answer": 0.03,
    "answer lost": 0.03,
    "hung up": 0.03,
    "doubled": 0.03,
    "late": 0.03,
}
"""The fate of a request -> its probability.

All but the first and `doubled` close the sender's connection.

cut in the request: the collector receives part of it. cut in the answer: the sender receives part of the answer. answer
lost: the collector has answered, but the sender receives nothing. hung up: nobody waits for the collector's answer.
doubled: sent to two collectors, or twice to the only one, at the same time. late: delivered after later requests.
"""

LATEST = 40
"""Maximum number of requests that overtake a late one."""


class FaultyProxy:
    """Forwards requests to one of several collectors. counts: how often each fate occurred."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._ports = ports
        self._dice = random.Random(seed)
        self._late: list[list[int | bytes]] = []  # [requests to go first, the request]
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def stop(self) -> None:
        """Closes every connection, and waits until all are closed."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # connections that were just accepted are served from here on
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(self._dice.choice(self._ports))
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._carry(await _message(reader), connection, writer):
                    pass
        finally:
            connection.close()
            writer.transport.abort() if self._dice.random() < 0.5 else writer.close()
            self._tasks.discard(task)

    async def _carry(self, request: bytes, connection: Connection, back: asyncio.StreamWriter) -> bool:
        """Carries one request with its fate. Returns whether the sender's connection stays open."""
        (fate,) = self._dice.choices(list(FATES), list(FATES.values()))
        self.counts[fate] += 1
        self._overtake()
        if fate == "late":
            self._late.append([self._dice.randrange(LATEST), request])
            return False
        if fate == "cut in the request":
            await connection.send(request[: self._dice.randrange(1, len(request))])
            return False
        if fate == "doubled":
            self._in_background(request)
        await connection.send(request)
        if fate == "hung up":
            return False
        answer = await connection.receive()
        if fate == "answer lost":
            return False
        if fate == "cut in the answer":
            answer = answer[: self._dice.randrange(1, len(answer))]
        back.write(answer)
        await back.drain()
        return fate in ("carried", "doubled")

    def _overtake(self) -> None:
        """Forwards late requests after enough others."""
        for message in self._late:
            message[0] -= 1  # type: ignore[operator]
        due = [message for message in self._late if message[0] < 0]  # type: ignore[operator]
        self._late = [message for message in self._late if message not in due]
        for _, request in due:
            assert isinstance(request, bytes)
            self._in_background(request)

    def _in_background(self, request: bytes) -> None:
        task = asyncio.ensure_future(_deliver(request, Connection(self._dice.choice(self._ports))))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Connection:
    """A connection to a collector, opened on first use."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> None:
        if self._ends is None:
            self._ends = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends[1].write(data)
        await self._ends[1].drain()

    async def receive(self) -> bytes:
        assert self._ends is not None
        return await _message(self._ends[0])

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].close()


async def _deliver(request: bytes, connection: Connection) -> None:
    """Deliver a request without returning the answer."""
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            await connection.send(request)
            await connection.receive()
    finally:  # also where stop() cancels it
        connection.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Reads a complete request or answer, head and body. Raises IncompleteReadError if it breaks off."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)
