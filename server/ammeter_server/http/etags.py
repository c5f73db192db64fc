"""ETags: a request for an unchanged response is answered with 304 and no body.

The tag of a small response is a hash of its body. The tag of a large response is a hash of the state that it is made
from, so that an unchanged response is never rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

VERSION = version("ammeter-server")

MAX_HASHED_BYTES = 2**20
"""Maximum bytes of a hashed body; hashing blocks all other requests for a millisecond."""

UNTAGGED_PATHS = ("/metrics", "/livez", "/readyz")
"""Paths whose response always changes, or whose request is a check of its own."""


@dataclass(frozen=True)
class Tag:
    """The entity tag of a response.

    Attributes:
        known: The client already has this response.
    """

    name: str
    known: bool

    def on(self, answer: Response) -> Response:
        answer.headers["ETag"] = self.name
        return answer

    def unchanged(self) -> Response:
        return self.on(Response(status_code=304))


def of(request: Request, *state: Any) -> Tag:
    """Computes the weak tag of a response from the request and the data's state.

    Weak: the bytes may differ, the content does not.
    """
    runs = list(request.path_params.values())  # the same path may mean another run for another project
    content = msgspec.msgpack.encode((VERSION, request.url.path, request.url.query, runs, state))
    name = f'W/"{blake2b(content, digest_size=12).hexdigest()}"'
    return Tag(name, _matches(request.headers, name))


class EntityTags:
    """ASGI middleware that tags GET responses and answers known ones with 304.

    It applies to responses with status 200 that are sent in one part and have no tag yet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(UNTAGGED_PATHS):
            await self.app(scope, receive, send)
            return
        begun: Message | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and _can_be_tagged(message):
                begun = message
                return
            if begun is not None:
                start, begun = begun, None
                if not message.get("more_body"):
                    message = _tag(start, message, Headers(scope=scope))
                await send(start)
            await send(message)

        await self.app(scope, receive, send_tagged)


def _can_be_tagged(start: Message) -> bool:
    return start["status"] == 200 and "etag" not in Headers(raw=start["headers"])


def _tag(start: Message, end: Message, request_headers: Headers) -> Message:
    """Writes the tag of a complete response into its headers. Returns its body, empty if the client has it."""
    body = end.get("body", b"")
    if len(body) > MAX_HASHED_BYTES:
        return end
    name = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = MutableHeaders(scope=start)
    headers["ETag"] = name
    if not _matches(request_headers, name):
        return end
    start["status"] = 304
    for name in ("content-length", "content-type"):
        del headers[name]
    return {**end, "body": b""}


def _matches(request_headers: Mapping[str, str], name: str) -> bool:
    """Whether If-None-Match contains the tag. It ignores the weak prefix (RFC 9110, 13.1.2)."""
    tags = [tag.strip().removeprefix("W/") for tag in request_headers.get("if-none-match", "").split(",")]
    return name.removeprefix("W/") in tags or "*" in tags
