"""The security headers that every answer carries, and redirects that lead nowhere else."""

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

OF_TLS = {"Strict-Transport-Security": "max-age=31536000"}
"""Only where the collector itself speaks TLS, or a proxy on this machine says that it does."""

OF_DATA = {"Cache-Control": "no-store"}
"""Everything but static files: what was told to somebody with a token is kept by nobody between."""


class SecurityHeaders:
    """ASGI middleware: adds the headers to every response that does not say otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = _raw(scope.get("scheme") == "https", not scope.get("path", "").startswith("/static/"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in ours if header[0] not in said)]
                if b"location" in said:
                    message["headers"] = [(name, _relative(name, value)) for name, value in message["headers"]]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _relative(name: bytes, value: bytes) -> bytes:
    """The value; of Location without scheme and host, which come from the request and may be anybody's."""
    if name.lower() != b"location":
        return value
    parts = urlsplit(value.decode("latin-1"))
    path = "/" + parts.path.lstrip("/")  # of two slashes the second would begin a host
    return (f"{path}?{parts.query}" if parts.query else path).encode("latin-1")


@cache
def _raw(of_tls: bool, of_data: bool) -> list[tuple[bytes, bytes]]:
    """Those that an answer carries, as they are sent."""
    headers = HEADERS | (OF_TLS if of_tls else {}) | (OF_DATA if of_data else {})
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
