"""Sessions of the web page.

A token is exchanged for a cookie that scripts cannot read.
"""

from __future__ import annotations

import secrets
import time

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from ammeter.wire.decodable import decodable
from ammeter_server.auth.callers import COOKIE, Caller, has, known
from ammeter_server.auth.tokens import fingerprint
from ammeter_server.context import AppContext, ContextDep
from ammeter_server.db import Store
from ammeter_server.db.queries import audit
from ammeter_server.db.queries import tokens as query
from ammeter_server.db.queries.tokens import SESSION_OF
from ammeter_server.http import limits
from ammeter_server.http.limits.body import read_body
from ammeter_server.http.limits.rate import RateLimiter
from ammeter_server.http.problems import Problem

router = APIRouter(tags=["session"])

SESSION_SECONDS = 7 * 24 * 3600
"""Maximum lifetime of a session; it ends earlier if its token expires."""

MAX_SESSIONS = 100
"""Maximum number of sessions per token, so that its owner cannot fill the database."""

MAX_SIGN_IN_BYTES = 4096

SIGN_INS_PER_SECOND = 1.0
BURST_SIGN_INS = 60.0
"""Sign-ins with one token, per second and as a burst. Each is written to the audit log, which is never trimmed."""

BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}}
        }
    },
}


@decodable
class SignIn(msgspec.Struct):
    token: str


@router.post("/api/v1/session", status_code=204, summary="Sign in", openapi_extra={"requestBody": BODY})
async def sign_in(request: Request, context: ContextDep) -> Response:
    """Exchanges a token with scope read for a session cookie that scripts cannot read."""
    _check_type(request)
    try:
        given = msgspec.json.decode(await read_body(request, MAX_SIGN_IN_BYTES), type=SignIn).token
        given.encode()
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Problem(400, f'the body is no JSON object such as {{"token": "..."}}: {error}') from error
    rate: RateLimiter = request.app.state.sign_in_rate
    if rate.is_over(fingerprint(given)):
        detail = f"the token has signed in more than {BURST_SIGN_INS:.0f} times; reuse the session"
        raise limits.over("sign-ins", 429, detail, wait=1)
    value = await anyio.to_thread.run_sync(_sign_in, context, request, given)
    response = Response(status_code=204)
    secure = request.url.scheme == "https" or context.settings.public_url.startswith("https:")
    response.set_cookie(COOKIE, value, max_age=SESSION_SECONDS, secure=secure, httponly=True, samesite="strict")
    return response


@router.delete("/api/v1/session", status_code=204, summary="Sign out")
def sign_out(request: Request, context: ContextDep) -> Response:
    """Ends the session and deletes its cookie."""
    cookie = request.cookies.get(COOKIE)
    if cookie:
        _end(context.store, fingerprint(cookie, "session"))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def sign_in_rate() -> RateLimiter:
    return RateLimiter(SIGN_INS_PER_SECOND, BURST_SIGN_INS)


def _check_type(request: Request) -> None:
    """Refuses form data, with which another site could sign a browser in as another user."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise Problem(415, f"Content-Type is {given[:80]!r}; send application/json")


def _end(store: Store, sha256: str) -> None:
    """Ends a session. Takes the write lock only if the session exists."""
    with store.reading() as connection:
        exists = query.find(connection, sha256, time.time_ns()) is not None
    if exists:
        with store.writing() as connection:
            query.remove(connection, sha256)


def _sign_in(context: AppContext, request: Request, given: str) -> str:
    """Returns the secret of a new session.

    Raises:
        Problem: 401 for an unknown token or one without scope read.
    """
    caller = known(context, request, fingerprint(given))
    if caller is None or not has(caller, "read"):
        raise Problem(401, "the token is unknown or has no scope read; `ammeter-server token create` makes one")
    return _open_session(context.store, caller)


def _open_session(store: Store, caller: Caller) -> str:
    value, now = secrets.token_urlsafe(32), time.time_ns()
    ends = now + SESSION_SECONDS * 10**9
    expires = ends if caller.expires is None else min(ends, caller.expires)
    with store.writing() as connection:
        query.remove_expired_sessions(connection, now)
        name = SESSION_OF + caller.name
        query.add(connection, fingerprint(value, "session"), name, "read", now, caller.project, expires)
        query.keep_newest(connection, name, MAX_SESSIONS)
        audit.add(connection, now, caller.name, "session.opened", "page")
    return value
