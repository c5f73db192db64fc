"""Checks that the collector is reachable, ready and accepts the token."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ammeter.doctor.line import Line, fail, ok, warn
from ammeter.environment.settings import Settings, proxies
from ammeter.redaction import text
from ammeter.shipper import http
from ammeter.shipper.http import Answer

SKEW_SECONDS = 5.0
"""run-lost waits 15 s for a silent host.

Larger clock differences make its times hard to read.
"""


def lines(chosen: Settings) -> Iterator[Line]:
    if chosen.url is None:
        remedy = "set AMMETER_URL to send runs to one; without, ammeter report reads them here"
        yield Line("note", "collector", "none is set: journals stay on this machine", remedy)
        return
    looked = http.look(chosen.url, chosen.token)
    yield from _ways(chosen, looked)


def _ways(chosen: Settings, looked: http.Looked) -> Iterator[Line]:
    assert chosen.url is not None
    url = text(chosen.url, 1000)
    if looked.ready.status == 0:
        yield fail("collector", f"{url} does not answer: {looked.ready.detail}", _remedy(chosen.url, looked.ready))
        yield from _proxies()
        return
    if looked.ready.status != 200:
        remedy = (
            "look at the collector's log" if looked.ready.status == 503 else "check AMMETER_URL: is it a collector's?"
        )
        yield fail("collector", f"{url}/readyz answers {looked.ready.detail}", remedy)
        return
    yield ok("collector", f"{url} is ready, {1000 * looked.seconds:.0f} ms away")
    yield _token(chosen, looked.taken)
    if looked.ahead is not None and abs(looked.ahead) > SKEW_SECONDS:
        yield warn("clock", f"the collector's is {looked.ahead:+.0f} s from this one", "set both by NTP")


def _token(chosen: Settings, taken: Answer) -> Line:
    whose = "this token" if chosen.token else "no token"
    if taken.status == 200 and taken.offset:
        said = f"the collector says that it has {taken.offset} bytes of a run that nobody has begun"
        return fail("token", said, "check that AMMETER_URL leads to one collector, and update it")
    if taken.status == 200:
        return ok("token", f"the collector takes runs with {whose}")
    if taken.status in (401, 403):
        remedy = "set AMMETER_TOKEN to one with scope ingest; `ammeter-server token create` makes it"
        return fail("token", f"the collector takes nothing with {whose}: {taken.detail}", remedy)
    return fail("token", f"the collector takes nothing: {taken.detail}", "look at the collector's log")


def _remedy(url: str, answer: Answer) -> str:
    said = answer.detail.lower()
    if "certificate" in said or "ssl" in said:
        return "set SSL_CERT_FILE to the certificate of who signed the collector's, or check its host name and date"
    if "resolve" in said or "name or service" in said or "temporary failure" in said:
        return f"check the name {urlsplit(url).hostname!r}, or this machine's DNS"
    if "refused" in said:
        return "start the collector (ammeter-server serve), or check the port in AMMETER_URL"
    return "check AMMETER_URL, and whether a firewall lies between"


def _proxies() -> Iterator[Line]:
    named = proxies()
    if named:
        yield warn(
            "proxy",
            f"{', '.join(named)} is set, and the shipper does not use it",
            "let it reach the collector directly",
        )
