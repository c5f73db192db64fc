"""Reads a request's body up to a limit, before anything is decoded."""

from __future__ import annotations

import asyncio

from fastapi import Request

from ammeter_server.problems import Problem

MOST_SECONDS = 120.0
"""For a whole body. Who sends a byte now and then would hold the rest of it in memory for ever."""


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises a 413 problem that names the limit as soon as it is passed, a 400 when it breaks off,
    a 408 when it takes too long."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise _too_large(int(announced), limit)
    body = bytearray()
    try:
        async with asyncio.timeout(MOST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _too_large(len(body), limit)
    except TimeoutError as error:
        said = f"{len(body)} bytes of the body came within {MOST_SECONDS:.0f} s; send it faster or in parts"
        raise Problem(408, said) from error
    return bytes(body)


def _too_large(size: int, limit: int) -> Problem:
    return Problem(413, f"the body has {size} bytes or more; the limit is {limit}: send it in parts", limit=limit)
