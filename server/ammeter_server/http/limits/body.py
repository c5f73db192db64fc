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
"""Maximum seconds for a whole body. Without it, a sender of one byte now and then would occupy memory for ever."""

GRACE_SECONDS = 10.0
MIN_BYTES_PER_SECOND = 4096.0
"""Minimum bytes per second of a body after its first seconds; a modem is faster."""

MAX_BODY_MEMORY_BYTES = 256 * 2**20
"""Maximum bytes of all bodies that are being received or wait for ingest: sixteen of the largest."""


@dataclass
class BodyMemory:
    """Bytes of all bodies in the memory of one collector process.

    Used only by its event loop.
    """

    size: int = 0
    limit: int = MAX_BODY_MEMORY_BYTES


@asynccontextmanager
async def body_of(request: Request, limit: int, memory: BodyMemory) -> AsyncIterator[bytes]:
    """Yields the whole body and counts its bytes until the block ends.

    Raises:
        Problem: See read_body.
    """
    share = _Share(memory)
    try:
        yield await read_body(request, limit, share)
    finally:
        memory.size -= share.size


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
        async with asyncio.timeout(min(GRACE_SECONDS, MAX_BODY_SECONDS)) as timeout:
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _too_large(len(body), limit)
                if share is not None:
                    share.add(len(part))
                timeout.reschedule(begin + min(MAX_BODY_SECONDS, GRACE_SECONDS + len(body) / MIN_BYTES_PER_SECOND))
    except TimeoutError as error:
        seconds = asyncio.get_running_loop().time() - begin
        detail = f"{len(body)} bytes of the body arrived within {seconds:.0f} s; send it faster or in parts"
        slow = limits.over("slow", 408, detail)
        slow.headers = {"Connection": "close"}
        raise slow from error
    except ClientDisconnect as error:  # the client does not get this response, but the logs stay clean
        raise Problem(400, f"the body ended after {len(body)} bytes; send it again") from error
    return bytes(body)


class _Share:
    """The bytes counted for one body."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.size = 0

    def add(self, more: int) -> None:
        if self.memory.size + more > self.memory.limit:
            detail = f"other batches use {self.memory.size} bytes of memory, which is the limit; retry later"
            raise limits.over("held", 503, detail, wait=1)
        self.memory.size += more
        self.size += more


def _too_large(size: int, limit: int) -> Problem:
    detail = f"the body has {size} bytes or more; the limit is {limit}: send it in parts"
    return limits.over("body", 413, detail, most=limit)
