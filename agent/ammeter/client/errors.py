"""Errors of the client. Each text has the problem, the value and the remedy."""

from __future__ import annotations


class ClientError(Exception):
    """A request to the collector failed.

    Attributes:
        status: the HTTP status, 0 without an answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class UnreachableError(ClientError):
    """The collector did not answer, or is not available now, also after the repeats."""


class UnauthorizedError(ClientError):
    """The collector does not accept the token, or its scope or project does not suffice."""


class NotFoundError(ClientError):
    """There is no such run or incident, or the token's project does not contain it."""


class RefusedError(ClientError):
    """The collector refuses a value, or the state of an incident forbids the change."""


class CollectorTooOldError(ClientError):
    """The collector's version does not have this resource."""


class NotACollectorError(ClientError):
    """Another server answers at this address, or one between here and the collector."""
