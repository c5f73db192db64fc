"""Compresses what the web page loads: its static files and the responses to its own requests."""

from __future__ import annotations

import gzip

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES, MAX_BYTES = 1000, 2**20
"""Smaller responses fit one packet; larger ones are rare on the page and take 20 ms or more to compress."""

MAX_INLINE_BYTES = 2**15
"""Maximum bytes that are compressed on the event loop, in less than a millisecond."""

LEVEL, STATIC_LEVEL = 4, 9
"""On JSON of curves, level 4 is three times as fast as level 9, and 5 % larger. Static files are compressed once."""

MAX_STATIC_FILES = 256

TYPES = ("text/html", "text/css", "text/javascript", "application/javascript", "application/json", "image/svg+xml")
OWN_TYPES = "application/vnd.ammeter."


class Compression:
    """ASGI middleware that compresses responses with gzip for a browser.

    Requests of other programs are not compressed, because they are local or many, and pay more for it than they gain.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._static_files: dict[tuple[str, str], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not _is_of_page(scope):
            await self.app(scope, receive, send)
            return
        begun: Message | None = None
        parts: list[bytes] = []

        async def send_compressed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and _is_compressible(message):
                begun = message
                return
            if begun is None:
                await send(message)
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                packed = await self._packed(scope["path"], begun, b"".join(parts))
                await send(_with_headers(begun, len(packed)))
                await send({"type": "http.response.body", "body": packed})

        await self.app(scope, receive, send_compressed)

    async def _packed(self, path: str, start: Message, body: bytes) -> bytes:
        tag = Headers(raw=start["headers"]).get("etag")
        if not path.startswith("/static/") or tag is None:
            return await _compressed(body, LEVEL)
        if (path, tag) not in self._static_files:
            if len(self._static_files) >= MAX_STATIC_FILES:
                self._static_files.clear()
            self._static_files[path, tag] = await _compressed(body, STATIC_LEVEL)
        return self._static_files[path, tag]


async def _compressed(body: bytes, level: int) -> bytes:
    def compress() -> bytes:
        return gzip.compress(body, level, mtime=0)

    return compress() if len(body) <= MAX_INLINE_BYTES else await anyio.to_thread.run_sync(compress)


def _is_of_page(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "gzip" in headers.get("accept-encoding", "") and "range" not in headers and "sec-fetch-site" in headers


def _is_compressible(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "").partition(";")[0]
    is_known = kind in TYPES or kind.startswith(OWN_TYPES)
    size = int(headers.get("content-length") or 0)
    return start["status"] == 200 and is_known and MIN_BYTES <= size <= MAX_BYTES and "content-encoding" not in headers


def _with_headers(start: Message, size: int) -> Message:
    """The tag becomes a weak one: the content is the same, the bytes are not (RFC 9110, 8.8.1)."""
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(size)
    headers.add_vary_header("Accept-Encoding")
    if "etag" in headers and not headers["etag"].startswith("W/"):
        headers["ETag"] = f"W/{headers['etag']}"
    return {**start, "headers": headers.raw}
