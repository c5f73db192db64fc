"""Security headers of all responses, and redirects that stay on this server."""

from __future__ import annotations

from functools import cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

TLS_HEADERS = {"Strict-Transport-Security": "max-age=31536000"}
"""Sent only with HTTPS: the collector itself uses TLS, or a proxy on this machine reports it."""

DATA_HEADERS = {"Cache-Control": "no-store"}
"""Sent with everything except static files: no cache may store data that needs a token."""


class SecurityHeaders:
    """ASGI middleware that adds the headers, unless a response sets them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        defaults = _raw(scope.get("scheme") == "https", not scope.get("path", "").startswith("/static/"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in defaults if header[0] not in names)]
                if b"location" in names:
                    message["headers"] = [(name, _relative(name, value)) for name, value in message["headers"]]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _relative(name: bytes, value: bytes) -> bytes:
    """Removes scheme and host from Location; they come from the request and may be forged."""
    if name.lower() != b"location":
        return value
    parts = urlsplit(value.decode("latin-1"))
    path = "/" + parts.path.lstrip("/")  # two leading slashes would begin a host name
    return (f"{path}?{parts.query}" if parts.query else path).encode("latin-1")


@cache
def _raw(of_tls: bool, of_data: bool) -> list[tuple[bytes, bytes]]:
    """The additional headers, encoded for ASGI."""
    headers = HEADERS | (TLS_HEADERS if of_tls else {}) | (DATA_HEADERS if of_data else {})
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
