"""Decodes the collector's answers, and computes the wait before the next request."""

from __future__ import annotations

import email.utils
import random
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ammeter.wire.decodable import decodable
from ammeter.wire.frames import Ack

REJECTED_WAITS_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Waits while the collector rejects the URL or token: 401, 403, 404."""

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.25, 30.0
"""A restarted collector is reached within one or two tries, and after a long outage notifications arrive within half a
minute."""

MAX_RETRY_AFTER_SECONDS = 600.0
"""A proxy that asks for a wait of a day must not delay a page for longer."""

DATA_STAYS = "; the data stays on disk; "
"""Stands between problem and remedy in the text of a refusal."""

WRONG_OFFSET_REMEDY = "check that AMMETER_URL is the address of one collector, and update that collector"


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    status: HTTP status, 0 without an answer. offset: what the collector has. item: index of the refused item.
    retry_seconds: from Retry-After.
    """

    status: int
    detail: str = ""
    offset: int | None = None
    item: int | None = None
    retry_seconds: float | None = None
    directives: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unavailable(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in (0, 408, 425, 429) or self.status >= 500


NO_ANSWER = Answer(0)


@decodable
class Problem(msgspec.Struct):
    """The members of a problem+json document that the sender evaluates."""

    title: str = ""
    detail: str = ""
    offset: int | None = None
    item: int | None = None


def decode_answer(status: int, body: bytes, retry_after: str | None = None) -> Answer:
    """Converts an HTTP response to an Answer.

    A 200 whose body is not an Ack does not come from a collector and counts as 404.
    """
    seconds = retry_seconds(retry_after)
    if status == 200:
        return _decode_ack(body, seconds)
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        problem = Problem()
    detail = f"{status} {problem.detail or problem.title}".strip()
    return Answer(status, detail, problem.offset, problem.item, seconds)


def _decode_ack(body: bytes, seconds: float | None) -> Answer:
    try:
        ack = msgspec.json.decode(body, type=Ack)
    except msgspec.DecodeError:
        ack = Ack(-1)
    if ack.offset < 0:
        return Answer(404, "200, but not from a collector", retry_seconds=seconds)
    return Answer(200, "", ack.offset, directives=ack.directives)


def offset_error(answer: Answer, end: int, sent_end: int) -> str:
    """Describes an impossible offset in an answer; '' if the offset is possible.

    A collector has what it was sent, and no more. A 200 acknowledges everything up to `end`. A 409 may be further back,
    for example after an older database was restored.

    Args:
        end: the offset at which the batch ends.
        sent_end: the highest offset that was ever sent.
    """
    offset = answer.offset
    if answer.status == 200 and offset is not None and offset < end:
        return f"the collector accepts a batch that ends at {end}, but acknowledges only {offset}"
    if answer.status in (200, 409) and offset is not None and not 0 <= offset <= sent_end:
        number = str(offset) if abs(offset) < 10**30 else "of more than 30 digits"
        return f"the collector reports an offset {number}, but nothing after {sent_end} was sent"
    return ""


def with_remedy(problem: str, answer: Answer) -> str:
    """Appends to a problem what a user can do about the answer that refuses a stream."""
    if answer.status in (200, 409):
        remedy = WRONG_OFFSET_REMEDY
    else:
        remedy = "check AMMETER_TOKEN" if answer.status in (401, 403) else "check AMMETER_URL and AMMETER_TOKEN"
    return f"{problem}{DATA_STAYS}{remedy}"


def retry_seconds(header: str | None) -> float | None:
    """Returns the seconds of a Retry-After header, at most ten minutes; None without one.

    The header may contain a number or a date.
    """
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, seconds), MAX_RETRY_AFTER_SECONDS)


def backoff_seconds(failures: int) -> float:
    """Returns the wait after so many consecutive failures.

    The wait doubles, with jitter, so that ranks do not retry at the same time.
    """
    longest: float = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)


def rejected_wait_seconds(failures: int) -> float:
    """Returns the wait after so many rejections of the URL or token."""
    return REJECTED_WAITS_SECONDS[min(failures, len(REJECTED_WAITS_SECONDS)) - 1]
