"""Who may ask: bearer tokens with scopes, and the page's session.

Routes name what they need: Depends(auth.read), Depends(auth.change), Depends(auth.ingest), Depends(auth.admin).
Without any token the collector is open, but only to requests that were meant for this machine: a page from elsewhere
that resolves its own name to 127.0.0.1 is refused by the Host header, and its forms by the header that changes need.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from ammeter_server import limits
from ammeter_server.collector import Collector, collector
from ammeter_server.problems import Problem
from ammeter_server.settings import is_loopback
from ammeter_server.store import tokens as query
from ammeter_server.store.tokens import SCOPES
from ammeter_server.tokens import fingerprint

COOKIE = "ammeter_session"
CHANGE_HEADER = "X-Ammeter-Request"
"""Changes from a browser carry it. Another site cannot set it, so it cannot make a signed-in person change things."""


@dataclass(frozen=True)
class Caller:
    """Who asks. project: the only one that it reaches; None for every one. expires: ns since the epoch, if it does."""

    name: str
    scopes: frozenset[str]
    project: str | None = None
    by_browser: bool = False
    expires: int | None = None


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


def admin(connection: HTTPConnection) -> Caller:
    """Whoever may see what people did: scope admin, of every project."""
    return unbound(_allow(connection, "admin"))


def everything(connection: HTTPConnection) -> Caller:
    """Whoever may look at what all projects come to."""
    return unbound(_allow(connection, "read"))


def unbound(caller: Caller) -> Caller:
    """The caller, unless its token is of one project."""
    if caller.project is not None:
        raise Problem(403, f"the token {caller.name!r} is of project {caller.project!r}; this is about all of them")
    return caller


def has(caller: Caller, scope: str) -> bool:
    return scope in caller.scopes or "admin" in caller.scopes


def known(here: Collector, connection: HTTPConnection, sha256: str) -> Caller | None:
    """Whose secret has this hash. Raises a 429 problem for an address that tries one after another."""
    address = connection.client.host if connection.client else ""
    wait = here.guesses.wait(address, sha256)
    if wait:
        raise limits.over("guesses", 429, f"{address} has tried too many wrong tokens; wait {wait:.0f} s", wait=wait)
    with here.store.reading() as transaction:
        row = query.find(transaction, sha256, time.time_ns())
    right = row is not None and hmac.compare_digest(row.sha256, sha256)
    here.guesses.note(address, sha256, right=right)
    return Caller(row.name, frozenset(row.scopes.split()), row.project, False, row.expires) if row and right else None


def _allow(connection: HTTPConnection, scope: str) -> Caller:
    here = collector(connection)
    caller = _bearer(here, connection) or _session(here, connection) or _open(here, connection)
    if caller is None:
        raise Problem(
            401,
            "no valid token; send `Authorization: Bearer <token>` (the agent: AMMETER_TOKEN)",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not has(caller, scope):
        raise Problem(403, f"the token {caller.name!r} has no scope {scope}; it has {' '.join(sorted(caller.scopes))}")
    return caller


def _bearer(here: Collector, connection: HTTPConnection) -> Caller | None:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return known(here, connection, fingerprint(token.strip())) if scheme.lower() == "bearer" else None


def _session(here: Collector, connection: HTTPConnection) -> Caller | None:
    cookie = connection.cookies.get(COOKIE)
    found = known(here, connection, fingerprint(cookie, "session")) if cookie else None
    return found and Caller(found.name, found.scopes, found.project, True, found.expires)


def _open(here: Collector, connection: HTTPConnection) -> Caller | None:
    """Everybody on this machine, as long as there is no token at all."""
    if not is_loopback(here.settings.host):
        return None
    with here.store.reading() as transaction:
        if query.any_exists(transaction):
            return None
    host = _host(connection.headers.get("host", ""))
    public = urlsplit(here.settings.public_url).hostname
    if not is_loopback(host) and host != public:
        raise Problem(
            421,
            f"the request is meant for {host[:200]!r}; without a token the collector answers to 127.0.0.1 and "
            "localhost only: use one of them, or set AMMETER_SERVER_PUBLIC_URL or a token",
        )
    return Caller("anybody", frozenset(SCOPES), by_browser=True)


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return header
