"""Sends a request of the client, repeats it while the collector is not available, and explains a refusal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ammeter.client.errors import (
    ClientError,
    CollectorTooOldError,
    NotACollectorError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from ammeter.shipper.answers import Answer, backoff_seconds, decode_answer
from ammeter.shipper.http import Connections, NoAnswerError, Response, request_headers, without_userinfo
from ammeter.wire.decodable import decodable

T = TypeVar("T")

CONNECT_SECONDS = 5.0
"""Time limit of a connection, that of the shipper."""

CHANGES = {"X-Ammeter-Request": "client"}
"""The header that a collector without tokens requires of a change."""

MAX_BODY_BYTES = 256 * 2**20
"""Limit of one answer. A page of curves has at most four million values with steps and times: 80 MB as arrays."""

MAX_WAIT_SECONDS = 30.0
"""The longest wait before a repeat. If the collector asks for more, the caller decides."""


@dataclass(frozen=True)
class Resource:
    """A resource of the API: its path with {places}, what fills them, and the scope of tokens that it needs."""

    template: str
    places: Mapping[str, str]
    scope: str = "read"

    @property
    def path(self) -> str:
        return self.template.format(**{name: quote(value, safe="") for name, value in self.places.items()})


class _Info(msgspec.Struct):
    version: str = "of an unknown version"


@decodable
class _Document(msgspec.Struct):
    """What the client reads of /openapi.json."""

    info: _Info
    paths: dict[str, msgspec.Raw]


class Requests:
    """Sends requests to one collector.

    repeats: how often a request is sent again while the collector is not available. The API changes an incident once,
    however often it is asked; a request that would act twice is not repeated.
    """

    def __init__(self, url: str, token: str | None, seconds: float, repeats: int) -> None:
        self.url, userinfo = without_userinfo(url)
        self._headers = request_headers(token, userinfo) | CHANGES
        self._repeats = repeats
        self._connections = Connections(min(CONNECT_SECONDS, seconds), seconds)

    def close(self) -> None:
        self._connections.close()

    def read(
        self,
        resource: Resource,
        query: Mapping[str, object] | None = None,
        method: str = "GET",
        repeated: bool = True,
    ) -> bytes:
        """Returns the body of the answer. Raises ClientError."""
        response = self._sent(method, resource.path, query or {}, self._repeats if repeated else 0)
        if response.status == 200 and len(response.body) < MAX_BODY_BYTES:
            return response.body
        raise self._explained(resource, response)

    def decoded(
        self,
        resource: Resource,
        kind: type[T],
        query: Mapping[str, object] | None = None,
        method: str = "GET",
        repeated: bool = True,
    ) -> T:
        """Returns the answer, decoded from JSON. Raises ClientError."""
        body = self.read(resource, query, method, repeated)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise self.unreadable(resource, str(error)) from None

    def unreadable(self, resource: Resource, reason: str) -> ClientError:
        """Returns the error for an answer that has not the form of the resource."""
        document = self._document()
        if document is None:
            return self._not_a_collector(200)
        text = f"the collector {document.info.version} at {self.url} answers {resource.path} in another form ({reason})"
        return CollectorTooOldError(f"{text}; install the client of the collector's version, or update both", 200)

    def _sent(self, method: str, path: str, query: Mapping[str, object], repeats: int) -> Response:
        given = {name: value for name, value in query.items() if value is not None}
        url = f"{self.url}{path}{'?' if given else ''}{urlencode(given, doseq=True)}"
        for attempt in range(1, repeats + 2):
            try:
                response = self._connections.request(method, url, self._headers, max_bytes=MAX_BODY_BYTES)
            except NoAnswerError as error:
                answer = Answer(0, str(error))
            else:
                if response.status == 200:
                    return response
                answer = decode_answer(response.status, response.body, response.headers.get("Retry-After"))
                if not answer.unavailable:
                    return response
            wait = backoff_seconds(attempt) if answer.retry_seconds is None else answer.retry_seconds
            if attempt > repeats or wait > MAX_WAIT_SECONDS:
                break
            time.sleep(wait)
        raise self._unreachable(answer, attempt)

    def _unreachable(self, answer: Answer, attempts: int) -> UnreachableError:
        tries = "" if attempts == 1 else f", in {attempts} attempts"
        if answer.status == 0:
            text = (
                f"{self.url} cannot be reached ({answer.detail}){tries}; check the address and that the collector runs"
            )
        else:
            wait = "later" if answer.retry_seconds is None else f"in {answer.retry_seconds:.0f} s"
            text = f"{self.url} is not available ({answer.detail}){tries}; try again {wait}"
        return UnreachableError(text, answer.status)

    def _explained(self, resource: Resource, response: Response) -> ClientError:
        """Returns the error of an answer that is final."""
        status = response.status
        if status == 200:
            return RefusedError(
                f"the answer of {self.url} to {resource.path} has {MAX_BODY_BYTES} bytes or more;"
                " request fewer names, a range of steps, or fewer points",
                status,
            )
        answer = decode_answer(status, response.body)
        if status in (401, 403):
            given = "does not accept the token" if "Authorization" in self._headers else "needs a token"
            text = f"{self.url} {given} ({answer.detail}); use a token with scope {resource.scope}"
            command = f"ammeter-server token create NAME --scopes {resource.scope}"
            return UnauthorizedError(f"{text}: {command}", status)
        if status in (404, 405):
            return self._missing(resource, answer)
        if "problem+json" not in response.headers.get("Content-Type", ""):
            return self._not_a_collector(status)
        return RefusedError(f"{self.url} refuses {resource.path}: {answer.detail}", status)

    def _missing(self, resource: Resource, answer: Answer) -> ClientError:
        """Distinguishes an object that does not exist from a resource that this collector does not have."""
        document = self._document()
        if document is None:
            return self._not_a_collector(answer.status)
        if resource.template not in document.paths:
            text = f"the collector at {self.url} is version {document.info.version} and has no {resource.template}"
            return CollectorTooOldError(f"{text}; update the collector", answer.status)
        return NotFoundError(f"{self.url} has no {resource.path}: {answer.detail}", answer.status)

    def _document(self) -> _Document | None:
        """Returns the description of the API; None if the server has none."""
        response = self._sent("GET", "/openapi.json", {}, self._repeats)
        try:
            return msgspec.json.decode(response.body, type=_Document) if response.status == 200 else None
        except msgspec.DecodeError:
            return None

    def _not_a_collector(self, status: int) -> NotACollectorError:
        return NotACollectorError(
            f"{self.url} answers {status}, but not as a collector; use the address that `ammeter-server serve` prints,"
            " without a path behind it",
            status,
        )
