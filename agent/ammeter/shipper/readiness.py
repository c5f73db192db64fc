"""Checks whether a collector is ready and accepts a token, as `ammeter doctor` asks."""

from __future__ import annotations

import email.utils
import time
import uuid
from dataclasses import dataclass

from ammeter.shipper.answers import NO_ANSWER, Answer, decode_answer
from ammeter.shipper.http import Collector, Connections, NoAnswerError
from ammeter.wire.frames import Batch


@dataclass(frozen=True)
class CollectorCheck:
    """The state of a collector.

    readiness: the answer to /readyz, which took `seconds`. ingest: the answer to an empty batch of a nonexistent run,
    which the collector does not store. clock_skew_seconds: how far the collector's clock is ahead of this one; None if
    unknown.
    """

    readiness: Answer
    seconds: float = 0.0
    ingest: Answer = NO_ANSWER
    clock_skew_seconds: float | None = None


def check_collector(
    url: str, token: str | None, *, connect_seconds: float = 5.0, read_seconds: float = 10.0
) -> CollectorCheck:
    """Checks whether a collector is ready and accepts this token. Never raises for network errors."""
    pool = Connections(connect_seconds, read_seconds)
    began = time.monotonic()
    try:
        response = pool.request("GET", f"{url.rstrip('/')}/readyz", {})
    except NoAnswerError as error:
        return CollectorCheck(Answer(0, str(error)))
    finally:
        pool.close()
    seconds = time.monotonic() - began
    is_ready = response.status == 200 and b'"ready"' in response.body
    readiness = Answer(200) if is_ready else decode_answer(response.status, response.body)
    if readiness.status != 200:
        return CollectorCheck(readiness, seconds)
    collector = Collector(url, token, lambda *_: None, connect_seconds=connect_seconds, read_seconds=read_seconds)
    ingest = collector.send(str(uuid.uuid4()), uuid.uuid4().hex, 0, 0, Batch())
    return CollectorCheck(readiness, seconds, ingest, _clock_skew_seconds(response.headers.get("Date")))


def _clock_skew_seconds(date: str | None) -> float | None:
    """Returns the seconds by which a Date header is ahead of this clock.

    The header has whole seconds, so the middle of its second is compared.
    """
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - time.time() if date else None
    except ValueError:
        return None
