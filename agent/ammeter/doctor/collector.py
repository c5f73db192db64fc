"""Checks that the collector is reachable, ready and accepts the token."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ammeter.doctor.line import Line, fail, ok, warn
from ammeter.environment.settings import Settings, proxies
from ammeter.redaction import text
from ammeter.shipper.answers import WRONG_OFFSET_REMEDY, Answer
from ammeter.shipper.readiness import CollectorCheck, check_collector

MAX_SKEW_SECONDS = 5.0
"""run-lost waits 15 s for a silent host.

Larger clock differences make its times hard to read.
"""


def lines(chosen: Settings) -> Iterator[Line]:
    if chosen.url is None:
        remedy = "set AMMETER_URL to send runs to a collector; ammeter report reads them without one"
        yield Line("note", "collector", "not set; journals stay on this machine", remedy)
        return
    yield from _check_lines(chosen, check_collector(chosen.url, chosen.token))


def _check_lines(chosen: Settings, check: CollectorCheck) -> Iterator[Line]:
    assert chosen.url is not None
    url = text(chosen.url, 1000)
    readiness = check.readiness
    if readiness.status == 0:
        yield fail(
            "collector", f"{url} does not respond: {readiness.detail}", _connection_remedy(chosen.url, readiness)
        )
        yield from _proxies()
        return
    if readiness.status != 200:
        wrong_address = "check that AMMETER_URL is the address of a collector"
        remedy = "read the collector's log" if readiness.status == 503 else wrong_address
        yield fail("collector", f"{url}/readyz answers {readiness.detail}", remedy)
        return
    yield ok("collector", f"{url} is ready and answers in {1000 * check.seconds:.0f} ms")
    yield _token(chosen, check.ingest)
    if check.clock_skew_seconds is not None and abs(check.clock_skew_seconds) > MAX_SKEW_SECONDS:
        difference = f"the collector's clock is {check.clock_skew_seconds:+.0f} s from this machine's"
        yield warn("clock", difference, "synchronize both clocks by NTP")


def _token(chosen: Settings, ingest: Answer) -> Line:
    if ingest.status == 200 and ingest.offset:
        return fail("token", f"the collector reports {ingest.offset} bytes of a run that is empty", WRONG_OFFSET_REMEDY)
    if ingest.status == 200:
        return ok("token", f"the collector accepts runs {'with this token' if chosen.token else 'without a token'}")
    if ingest.status in (401, 403):
        request = "this token" if chosen.token else "a request without a token"
        remedy = "set AMMETER_TOKEN to a token with scope ingest; `ammeter-server token create` creates one"
        return fail("token", f"the collector rejects {request}: {ingest.detail}", remedy)
    return fail("token", f"the collector accepts no data: {ingest.detail}", "read the collector's log")


def _connection_remedy(url: str, answer: Answer) -> str:
    detail = answer.detail.lower()
    if "certificate" in detail or "ssl" in detail:
        return "set SSL_CERT_FILE to the authority of the collector's certificate, or check its host name and date"
    if "resolve" in detail or "name or service" in detail or "temporary failure" in detail:
        return f"check the name {urlsplit(url).hostname!r}, or this machine's DNS"
    if "refused" in detail:
        return "start the collector (ammeter-server serve), or check the port in AMMETER_URL"
    return "check AMMETER_URL, and whether a firewall blocks the connection"


def _proxies() -> Iterator[Line]:
    names = proxies()
    if names:
        text = f"{', '.join(names)} is set, but the shipper uses no proxy"
        yield warn("proxy", text, "make sure that this machine reaches the collector directly")
