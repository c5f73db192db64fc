from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import IO, Any

import pytest

from deploy.compose import ROOT
from deploy.pages import formatted
from tests.alerting import answers, free_port, until

ALERT = {
    "status": "firing",
    "annotations": {
        "summary": "Weights are not finite: nightly, step 7",
        "description": "Cause: it overflowed.\n\nFix: go back.",
        "runbook_url": "http://collector/runbooks/nonfinite-weights",
    },
}


def notification(*alerts: dict[str, Any], status: str = "firing", **labels: str) -> dict[str, Any]:
    return {"status": status, "groupLabels": {"alertname": "AmmeterNonfiniteWeights", **labels}, "alerts": list(alerts)}


def test_a_page_says_what_is_wrong_what_to_do_and_where_to_read_on() -> None:
    assert [
        "",
        "PAGE firing: AmmeterNonfiniteWeights in project speech",
        "  Weights are not finite: nightly, step 7",
        "    Cause: it overflowed.",
        "    Fix: go back.",
        "    Runbook: http://collector/runbooks/nonfinite-weights",
    ] == formatted("page", notification(ALERT, project="speech"))


def test_what_is_over_is_one_line_an_alert() -> None:
    over = {**ALERT, "status": "resolved"}
    assert [
        "",
        "TICKET resolved: AmmeterNonfiniteWeights",
        "  Weights are not finite: nightly, step 7",
    ] == formatted("ticket", notification(over, status="resolved"))


def test_of_many_alerts_the_first_are_shown_and_the_others_counted() -> None:
    assert "  and 495 more" == formatted("page", notification(*[ALERT] * 500))[-1]


def test_no_name_steers_the_terminal() -> None:
    hostile = {**ALERT, "annotations": {"summary": "\x1b[2J\x07run", "description": "\x9b31m", "runbook_url": "\x1b]8"}}
    assert [] == re.findall(r"[^\x20-\x7e]", "".join(formatted("page\x1b", notification(hostile, project="\x1b[1A"))))


@pytest.fixture
def receiver() -> Iterator[tuple[str, IO[str]]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, str(ROOT / "deploy" / "pages.py"), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: answers(f"http://{address}/"), "it listens")
            assert process.stdout is not None
            yield f"http://{address}", process.stdout
        finally:
            process.terminate()


def test_it_prints_what_it_is_told_and_refuses_what_is_none(receiver: tuple[str, IO[str]]) -> None:
    url, printed = receiver
    for body in (b"[]", b"not json", b'{"groupLabels": {}}', b""):
        with pytest.raises(urllib.error.HTTPError, match=r"HTTP Error 4"):
            urllib.request.urlopen(f"{url}/page", data=body, timeout=10)
    with urllib.request.urlopen(f"{url}/ticket", data=json.dumps(notification(ALERT)).encode(), timeout=10) as answer:
        assert 200 == answer.status
    lines = [printed.readline().rstrip() for _ in range(3)]
    assert [f"this terminal prints pages; Alertmanager sends them to port {url.rpartition(':')[2]}", ""] == lines[:2]
    assert "TICKET firing: AmmeterNonfiniteWeights" == lines[2]
