"""Error responses as problem+json (RFC 9457): the error, the value received, the remedy."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ammeter.wire import printable
from ammeter_server.db import StoreAwayError, StoreBrokenError, StoreFullError, StoreRefusingError
from ammeter_server.db.json_safe import plain
from ammeter_server.http.security_headers import HEADERS

CONTENT_TYPE = "application/problem+json"

MAX_VALUE_CHARS = 200
"""Maximum characters of a received value that an error message repeats."""


class Problem(Exception):
    """An error response. Additional members go into the body unchanged."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members


def answer(problem: Problem) -> JSONResponse:
    """Renders the problem; its type is about:blank, so its title is the status phrase."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        **plain(problem.members),
    }
    return JSONResponse(body, problem.status, problem.headers, media_type=CONTENT_TYPE)


def of_store(error: Exception) -> Problem:
    """The problem of a database error.

    A full, damaged or refusing database needs a person; an unreachable one usually recovers by itself. Retry-After
    differs accordingly.
    """
    if isinstance(error, StoreFullError):
        return Problem(507, str(error), headers={"Retry-After": "30"})
    if isinstance(error, StoreBrokenError):
        return Problem(503, str(error), headers={"Retry-After": "30"})
    if isinstance(error, StoreRefusingError):  # happens during a failover of the primary server, and ends soon
        return Problem(503, str(error), headers={"Retry-After": "5"})
    return Problem(503, str(error), headers={"Retry-After": "2"})


def register(app: FastAPI) -> None:
    """Turns all errors into problems: own ones, 404 and 405 of the router, validation, database."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(StoreFullError, _store)
    app.add_exception_handler(StoreAwayError, _store)
    app.add_exception_handler(Exception, _fault)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer(error)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {_cut(request.url.path)}: {error.detail}"
    return answer(Problem(error.status_code, detail, headers=dict(error.headers or {})))


async def _validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = [
        {
            "where": ".".join(str(part) for part in mistake["loc"]),
            "what": mistake["msg"],
            "value": _cut(plain(mistake.get("input"))),
        }
        for mistake in error.errors()
    ]
    first = wrong[0]
    return answer(Problem(422, f"{first['where']} is {first['value']!r}: {first['what']}", errors=wrong))


def _cut(value: Any) -> Any:
    """Shortens a received value for an error message."""
    return printable.shortened(value, MAX_VALUE_CHARS) if isinstance(value, str) else value


async def _store(_: Request, error: Exception) -> Response:
    return answer(of_store(error))


async def _fault(request: Request, _: Exception) -> Response:
    detail = f"{request.method} {_cut(request.url.path)} failed inside the collector; its log has the traceback"
    return answer(Problem(500, detail, headers=HEADERS))  # this response bypasses the middleware that adds the headers
