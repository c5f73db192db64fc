"""Reads a request's body up to a limit, before anything is decoded."""

from __future__ import annotations

from fastapi import Request

from ammeter_server.problems import Problem


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises a 413 problem that names the limit as soon as it is passed, a 400 when it breaks off."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise _too_large(int(announced), limit)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise _too_large(len(body), limit)
    return bytes(body)


def _too_large(size: int, limit: int) -> Problem:
    return Problem(413, f"the body has {size} bytes or more; the limit is {limit}: send it in parts", limit=limit)
