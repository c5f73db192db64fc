"""Reads request bodies with limits on size, duration and total memory before anything is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.requests import ClientDisconnect

from ammeter_server.http import limits
from ammeter_server.http.problems import Problem

MAX_BODY_SECONDS = 120.0
"""Maximum seconds for a whole body. Without it, a sender of one byte now and then occupies memory for ever."""

FIRST_SECONDS = 10.0
SLOWEST = 4096.0
"""Minimum bytes per second of a body after its first seconds; a modem is faster."""

MAX_HELD_BYTES = 256 * 2**20
"""Maximum bytes of all bodies that are being received or wait for ingest: sixteen of the largest."""


@dataclass
class HeldBytes:
    """Bytes of all bodies in the memory of one collector process.

    Used only by its event loop.
    """

    size: int = 0
    most: int = MAX_HELD_BYTES


@asynccontextmanager
async def body_of(request: Request, limit: int, held: HeldBytes) -> AsyncIterator[bytes]:
    """Yields the whole body and counts its bytes until the block ends.

    Raises:
        Problem: See read_body.
    """
    before = _Share(held)
    try:
        yield await read_body(request, limit, before)
    finally:
        held.size -= before.size


async def read_body(request: Request, limit: int, share: _Share | None = None) -> bytes:
    """Reads the whole body.

    Raises:
        Problem: 413 as soon as the body exceeds the limit, with the limit; 400 if it is incomplete; 408 if it arrives
            too slowly; 503 while all bodies together need too much memory.
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise _too_large(int(announced), limit)
    body = bytearray()
    begin = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(min(FIRST_SECONDS, MAX_BODY_SECONDS)) as patience:
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _too_large(len(body), limit)
                if share is not None:
                    share.take(len(part))
                patience.reschedule(begin + min(MAX_BODY_SECONDS, FIRST_SECONDS + len(body) / SLOWEST))
    except TimeoutError as error:
        took = asyncio.get_running_loop().time() - begin
        said = f"{len(body)} bytes of the body came within {took:.0f} s; send it faster or in parts"
        slow = limits.over("slow", 408, said)
        slow.headers = {"Connection": "close"}
        raise slow from error
    except ClientDisconnect as error:  # the client does not get this response, but the logs stay clean
        raise Problem(400, f"the body broke off after {len(body)} bytes; send it again") from error
    return bytes(body)


class _Share:
    """The bytes counted for one body."""

    def __init__(self, held: HeldBytes) -> None:
        self.held = held
        self.size = 0

    def take(self, more: int) -> None:
        if self.held.size + more > self.held.most:
            said = f"batches that are being taken hold {self.held.size} bytes already, which is the limit; ask again"
            raise limits.over("held", 503, said, wait=1)
        self.held.size += more
        self.size += more


def _too_large(size: int, limit: int) -> Problem:
    said = f"the body has {size} bytes or more; the limit is {limit}: send it in parts"
    return limits.over("body", 413, said, most=limit)
