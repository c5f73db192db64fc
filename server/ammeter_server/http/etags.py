"""ETags: whoever asks again for what has not changed since is told so with 304, and gets no body.

Small answers are made and compared. Large ones name the state of what they are made of, and are not made at all.
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

MAX_COMPARED_BYTES = 2**20
"""Of a body that is compared: a millisecond in which nobody else is answered."""

UNTAGGED = ("/metrics", "/livez", "/readyz")
"""What is never the same again, or is asked for the sake of asking."""


@dataclass(frozen=True)
class Tag:
    """The name of an answer. known: whoever asks has that one already."""

    name: str
    known: bool

    def on(self, answer: Response) -> Response:
        answer.headers["ETag"] = self.name
        return answer

    def unchanged(self) -> Response:
        return self.on(Response(status_code=304))


def of(request: Request, *state: Any) -> Tag:
    """The tag of what this question gets; it changes with the state. Weak: bytes may differ, what they say does not."""
    runs = list(request.path_params.values())  # the same path may name another run for another project
    said = msgspec.msgpack.encode((VERSION, request.url.path, request.url.query, runs, state))
    name = f'W/"{blake2b(said, digest_size=12).hexdigest()}"'
    return Tag(name, _holds(request.headers, name))


class EntityTags:
    """ASGI middleware: tags every answer to GET that is in one piece and has no tag yet, and leaves out known ones."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(UNTAGGED):
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


def _tag(start: Message, end: Message, asked: Headers) -> Message:
    """Writes the tag of a whole answer into its headers. Returns its body, empty for one that is known."""
    body = end.get("body", b"")
    if len(body) > MAX_COMPARED_BYTES:
        return end
    name = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = MutableHeaders(scope=start)
    headers["ETag"] = name
    if not _holds(asked, name):
        return end
    start["status"] = 304
    for about_the_body in ("content-length", "content-type"):
        del headers[about_the_body]
    return {**end, "body": b""}


def _holds(asked: Mapping[str, str], name: str) -> bool:
    """Whether If-None-Match has the tag; weak and strong ones are alike for it (RFC 9110, 13.1.2)."""
    said = [tag.strip().removeprefix("W/") for tag in asked.get("if-none-match", "").split(",")]
    return name.removeprefix("W/") in said or "*" in said
