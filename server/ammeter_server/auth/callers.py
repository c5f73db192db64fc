"""Authentication and authorization: bearer tokens with scopes, and sessions of the web page.

Routes declare the access that they need: Depends(callers.read), Depends(callers.change), Depends(callers.admin).

Without any token the collector is open, but only to requests that are meant for this machine. The Host header exposes
pages from elsewhere whose name resolves to 127.0.0.1. The header that changes need stops forms of other sites. The
headers that proxies add expose requests from elsewhere that a proxy on this machine forwards.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from ammeter_server.auth.tokens import fingerprint
from ammeter_server.config.settings import is_private_to_this_machine
from ammeter_server.config.values import is_loopback
from ammeter_server.context import AppContext, app_context
from ammeter_server.db.queries import tokens as query
from ammeter_server.db.queries.tokens import SCOPES
from ammeter_server.http import limits
from ammeter_server.http.problems import Problem

COOKIE = "ammeter_session"
CHANGE_HEADER = "X-Ammeter-Request"
"""Header of changes from a browser. Other sites cannot set it, so they cannot change data in the name of a person who
is signed in."""

PROXY_PREFIXES = ("x-forwarded", "x-original-", "x-envoy-", "cf-")
PROXY_HEADERS = frozenset(
    (
        "forwarded",
        "via",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "true-client-ip",
        "fastly-client-ip",
        "x-proxyuser-ip",
        "cdn-loop",
    )
)
"""Headers that only a proxy adds. A request with one of them may come from any address behind the proxy."""


@dataclass(frozen=True)
class Caller:
    """The authenticated sender of a request.

    Attributes:
        project: The only project that it has access to; None for all projects.
        by_browser: The browser sent the credential by itself, or no token exists.
        expires: Nanoseconds since the epoch; None if it never expires.
    """

    name: str
    scopes: frozenset[str]
    project: str | None = None
    by_browser: bool = False
    expires: int | None = None


def read(connection: HTTPConnection) -> Caller:
    """Requires scope read, from a token or a session of the page."""
    return _allow(connection, "read")


def change(connection: HTTPConnection) -> Caller:
    """Requires scope read for a change of incidents.

    A browser also has to prove with CHANGE_HEADER that the page itself sends the request.
    """
    return _changing(_allow(connection, "read"), connection)


def ingest(connection: HTTPConnection) -> Caller:
    """Requires scope ingest, from a token, to send frames."""
    return _allow(connection, "ingest")


def admin(connection: HTTPConnection) -> Caller:
    """Requires scope admin for all projects, for example to read the audit log."""
    return unbound(_allow(connection, "admin"))


def administer(connection: HTTPConnection) -> Caller:
    """Requires scope admin for all projects for a change, with CHANGE_HEADER from a browser."""
    return unbound(_changing(_allow(connection, "admin"), connection))


def everything(connection: HTTPConnection) -> Caller:
    """Requires scope read for all projects, for example for fleet totals."""
    return unbound(_allow(connection, "read"))


def unbound(caller: Caller) -> Caller:
    """Returns the caller, unless its token is limited to one project.

    Raises:
        Problem: 403 for a token of one project.
    """
    if caller.project is not None:
        raise Problem(
            403, f"the token {caller.name!r} is limited to project {caller.project!r}; use a token for all projects"
        )
    return caller


def has(caller: Caller, scope: str) -> bool:
    return scope in caller.scopes or "admin" in caller.scopes


def known(context: AppContext, connection: HTTPConnection, sha256: str) -> Caller | None:
    """The owner of the token with this hash; None if it is unknown.

    Raises:
        Problem: 429 for an address that tries many wrong tokens.
    """
    caller = find(context, sha256)
    if caller is None:
        _count_guess(context, connection, sha256)
    return caller


def find(context: AppContext, sha256: str) -> Caller | None:
    """The owner of the token or session with this hash; None without a valid one."""
    with context.store.reading() as transaction:
        row = query.find(transaction, sha256, time.time_ns())
    if row is None or not hmac.compare_digest(row.sha256, sha256):
        return None
    return Caller(row.name, frozenset(row.scopes.split()), row.project, False, row.expires)


def secrets_of(connection: HTTPConnection) -> list[tuple[str, bool]]:
    """Hashes of the request's credentials: the bearer token, then the session cookie.

    Returns:
        Pairs of the hash and whether the browser sent the credential by itself. Different spellings of the header have
            the same hash.
    """
    credentials = []
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        credentials.append((fingerprint(token.strip()), False))
    cookie = connection.cookies.get(COOKIE)
    if cookie:
        credentials.append((fingerprint(cookie, "session"), True))
    return credentials


def address_of(connection: HTTPConnection) -> str:
    """The client address of a request, as reported by the nearest trusted proxy."""
    return connection.client.host if connection.client else ""


def proxy_header(connection: HTTPConnection) -> str | None:
    """The first header of a request that a proxy has added; None without one."""
    names = connection.headers.keys()
    return next((name for name in names if name in PROXY_HEADERS or name.startswith(PROXY_PREFIXES)), None)


def _count_guess(context: AppContext, connection: HTTPConnection, sha256: str) -> None:
    address = address_of(connection)
    wait = context.guesses.add(address, sha256)
    if wait:
        raise limits.over("guesses", 429, f"{address} has sent too many wrong tokens; wait {wait:.0f} s", wait=wait)


def _changing(caller: Caller, connection: HTTPConnection) -> Caller:
    if caller.by_browser and CHANGE_HEADER not in connection.headers:
        raise Problem(403, f"the request has no header {CHANGE_HEADER}; send it with any value")
    return caller


def _allow(connection: HTTPConnection, scope: str) -> Caller:
    context = app_context(connection)
    credentials = secrets_of(connection)
    caller = _owner(context, credentials) or _local_caller(context, connection)
    if caller is None:
        for sha256, _ in credentials:
            _count_guess(context, connection, sha256)
        raise Problem(
            401,
            "no valid token; `ammeter-server token create` makes one: set AMMETER_TOKEN for the agent, or send "
            "`Authorization: Bearer <token>`",  # last, because the log omits what follows the name of this header
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not has(caller, scope):
        scopes = " ".join(sorted(caller.scopes))
        raise Problem(
            403, f"the token {caller.name!r} has no scope {scope}, it has {scopes}; use a token with scope {scope}"
        )
    return caller


def _owner(context: AppContext, credentials: list[tuple[str, bool]]) -> Caller | None:
    """The owner of the first valid credential."""
    for sha256, by_browser in credentials:
        caller = find(context, sha256)
        if caller is not None:
            return replace(caller, by_browser=by_browser)
    return None


def _local_caller(context: AppContext, connection: HTTPConnection) -> Caller | None:
    """The caller of requests from this machine while no token exists.

    Returns:
        None if a token exists or the collector is public.

    Raises:
        Problem: 421 or 403 if the request is not from this machine.
    """
    if not is_private_to_this_machine(context.settings):
        return None
    with context.store.reading() as transaction:
        if query.any_exists(transaction):
            return None
    host = _host(connection.headers.get("host", ""))
    if not is_loopback(host):
        raise Problem(
            421,
            f"the request is meant for {host[:200]!r}; without a token the collector answers to 127.0.0.1 and "
            "localhost only: use one of them, or make a token with `ammeter-server token create`",
        )
    proxy = proxy_header(connection)
    if proxy is not None:
        raise Problem(
            403,
            f"the request came through a proxy (it has the header {proxy}), and this collector has no token, so every "
            "client of the proxy could read and change everything; set AMMETER_SERVER_TOKEN_FILE, or make "
            "a token with `ammeter-server token create`",
        )
    return Caller("anybody", frozenset(SCOPES), by_browser=True)


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return header
