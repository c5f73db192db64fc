"""Who may ask: bearer tokens with scopes, and the page's session cookie.

Routes name what they need: Depends(auth.read), Depends(auth.change), Depends(auth.ingest). Without any token the
collector is open, but only to requests that were meant for this machine: a page from elsewhere that resolves its
own name to 127.0.0.1 is refused by the Host header, and its forms by the header that changes need.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.requests import HTTPConnection

from ammeter_server.collector import Collector, Here, collector
from ammeter_server.problems import Problem
from ammeter_server.request_body import read_body
from ammeter_server.settings import Settings, is_loopback
from ammeter_server.store import Store, tokens
from ammeter_server.store.tokens import SCOPES

router = APIRouter(tags=["session"])

COOKIE = "ammeter_session"
CHANGE_HEADER = "X-Ammeter-Request"
"""Changes from a browser carry it. Another site cannot set it, so it cannot make a signed-in person change things."""

SESSION_SECONDS = 7 * 24 * 3600
MAX_SIGN_IN_BYTES = 4096


@dataclass(frozen=True)
class Caller:
    """Who asks. project: the only one that may be written to; None for every one."""

    name: str
    scopes: frozenset[str]
    project: str | None = None
    by_browser: bool = False


def read(connection: HTTPConnection) -> Caller:
    """Whoever may look: scope read, by token or by the page's session."""
    return _allow(connection, "read")


def change(connection: HTTPConnection) -> Caller:
    """Whoever may handle incidents: as read, and a browser has to prove that the request is our page's own."""
    caller = _allow(connection, "read")
    if caller.by_browser and CHANGE_HEADER not in connection.headers:
        raise Problem(403, f"the request has no header {CHANGE_HEADER}; send it with any value")
    return caller


def ingest(connection: HTTPConnection) -> Caller:
    """Whoever may send frames: scope ingest, by token."""
    return _allow(connection, "ingest")


def create_token(store: Store, name: str, scopes: tuple[str, ...], project: str | None = None) -> str:
    """A new token of 256 random bits; only its hash is stored, so this is the one time it can be read."""
    token = secrets.token_urlsafe(32)
    with store.writing() as connection:
        tokens.add(connection, fingerprint(token), name, " ".join(scopes), time.time_ns(), project)
    return token


def load_token_file(settings: Settings, store: Store) -> None:
    """Makes the settings' token valid, with every scope."""
    if settings.token:
        with store.writing() as connection:
            tokens.replace_from_file(connection, fingerprint(settings.token), " ".join(SCOPES), time.time_ns())


def fingerprint(token: str, kind: str = "token") -> str:
    """The hash under which a secret is stored. A session's is keyed, so that neither kind passes for the other."""
    if kind == "token":
        return hashlib.sha256(token.encode()).hexdigest()
    return hmac.digest(kind.encode(), token.encode(), "sha256").hex()


class SignIn(msgspec.Struct):
    token: str


@router.post(
    "/api/v1/session",
    status_code=204,
    summary="Sign in",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["token"],
                        "properties": {"token": {"type": "string"}},
                    }
                }
            },
        }
    },
)
async def sign_in(request: Request, here: Here) -> Response:
    """Exchanges a token with scope read for a session cookie that a page's scripts cannot see."""
    try:
        given = msgspec.json.decode(await read_body(request, MAX_SIGN_IN_BYTES), type=SignIn).token
    except msgspec.DecodeError as error:
        raise Problem(400, f'the body is no JSON object such as {{"token": "..."}}: {error}') from error
    caller = _known(here, fingerprint(given))
    if caller is None or not _has(caller, "read"):
        raise Problem(401, "the token is unknown or has no scope read; `ammeter-server token create` makes one")
    response = Response(status_code=204)
    response.set_cookie(
        COOKIE,
        _open_session(here.store, caller),
        max_age=SESSION_SECONDS,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.delete("/api/v1/session", status_code=204, summary="Sign out")
def sign_out(request: Request, here: Here) -> Response:
    """Ends the session, here and in the browser."""
    cookie = request.cookies.get(COOKIE)
    if cookie:
        with here.store.writing() as connection:
            tokens.remove(connection, fingerprint(cookie, "session"))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _allow(connection: HTTPConnection, scope: str) -> Caller:
    here = collector(connection)
    caller = _bearer(here, connection) or _session(here, connection) or _open(here, connection)
    if caller is None:
        raise Problem(
            401,
            "no valid token; send `Authorization: Bearer <token>` (the agent: AMMETER_TOKEN)",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not _has(caller, scope):
        raise Problem(403, f"the token {caller.name!r} has no scope {scope}; it has {' '.join(sorted(caller.scopes))}")
    return caller


def _has(caller: Caller, scope: str) -> bool:
    return scope in caller.scopes or "admin" in caller.scopes


def _bearer(here: Collector, connection: HTTPConnection) -> Caller | None:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return _known(here, fingerprint(token.strip())) if scheme.lower() == "bearer" else None


def _session(here: Collector, connection: HTTPConnection) -> Caller | None:
    cookie = connection.cookies.get(COOKIE)
    found = _known(here, fingerprint(cookie, "session")) if cookie else None
    return found and Caller(found.name, found.scopes, found.project, by_browser=True)


def _known(here: Collector, sha256: str) -> Caller | None:
    with here.store.reading() as connection:
        row = tokens.find(connection, sha256, time.time_ns())
    if row is None or not hmac.compare_digest(row.sha256, sha256):
        return None
    return Caller(row.name, frozenset(row.scopes.split()), row.project)


def _open(here: Collector, connection: HTTPConnection) -> Caller | None:
    """Everybody on this machine, as long as there is no token at all."""
    if not is_loopback(here.settings.host):
        return None
    with here.store.reading() as transaction:
        if tokens.any_exists(transaction):
            return None
    host = _host(connection.headers.get("host", ""))
    public = urlsplit(here.settings.public_url).hostname
    if not is_loopback(host) and host != public:
        raise Problem(
            421,
            f"the request is meant for {host!r}; without a token the collector answers to 127.0.0.1 and localhost "
            "only: use one of them, or set AMMETER_SERVER_PUBLIC_URL or a token",
        )
    return Caller("anybody", frozenset(SCOPES), by_browser=True)


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return header


def _open_session(store: Store, caller: Caller) -> str:
    value, now = secrets.token_urlsafe(32), time.time_ns()
    with store.writing() as connection:
        tokens.remove_expired(connection, now)
        expires = now + SESSION_SECONDS * 10**9
        name = f"session of {caller.name}"
        tokens.add(connection, fingerprint(value, "session"), name, "read", now, caller.project, expires)
    return value
