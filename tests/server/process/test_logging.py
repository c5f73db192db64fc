from __future__ import annotations

import io
import logging
import os
import re
import sys
from pathlib import Path

import httpx
import pytest

from ammeter.wire import frames
from ammeter.wire.printable import escaped
from ammeter_server import worker
from ammeter_server.cli.demo.processes import free_port
from ammeter_server.process.activity_log import REFUSED
from ammeter_server.process.logging import (
    FORMAT,
    HTTP_SERVER,
    MAX_THROTTLED_LINES,
    THROTTLE_SECONDS,
    LogThrottle,
    OneLine,
)
from tests import forked
from tests.e2e.processes import Receiver
from tests.server.feeding import Stream, break_down, train, wait_until

HOSTILE = "x\n2026-01-01 00:00:00 ERROR root: forged\r\x1b[2J\u202egnp.exe\u2028\x00\x85end"


def written(log: logging.Logger, act: str) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine(FORMAT))
    log.addHandler(handler)
    try:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            getattr(log, act)("run %s said %s", HOSTILE, "more")
    finally:
        log.removeHandler(handler)
    return out.getvalue().split("\n")[:-1]


def test_a_hostile_name_is_one_line_of_the_log() -> None:
    (line,) = written(logging.getLogger("hostile.one"), "warning")
    assert line.isprintable()
    assert line.endswith(r"said more")
    assert r"run x\n2026-01-01" in line


def test_a_traceback_is_set_in_and_forges_no_record() -> None:
    first, *rest = written(logging.getLogger("hostile.two"), "exception")
    assert "ERROR hostile.two: run x" in first
    assert rest
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)


def test_what_strangers_send_is_told_now_and_then_and_a_fault_always() -> None:
    now = 1000.0
    seldom = LogThrottle(lambda: now)

    def told(level: int, words: str, name: str = HTTP_SERVER) -> str:
        record = logging.LogRecord(name, level, "", 0, words, None, None)
        return record.getMessage() if seldom.filter(record) else ""

    assert ["no HTTP", "", "", ""] == [told(logging.WARNING, "no HTTP") for _ in range(4)]
    assert "no websocket" == told(logging.WARNING, "no websocket")
    assert ["broken", "broken"] == [told(logging.ERROR, "broken") for _ in range(2)]
    assert ["mine", "mine"] == [told(logging.WARNING, "mine", "ammeter_server.judging.judge") for _ in range(2)]
    now += THROTTLE_SECONDS
    assert "no HTTP (3 more since the last such line)" == told(logging.WARNING, "no HTTP")
    assert "" == told(logging.WARNING, "no HTTP")


def test_refusals_of_each_source_are_logged_once_a_minute_and_many_sources_share_a_line() -> None:
    now = 1000.0
    throttle = LogThrottle(lambda: now)

    def logged(source: str | None) -> str:
        record = logging.LogRecord(REFUSED, logging.INFO, "", 0, "batch.refused status=401", None, None)
        record.source = source
        return record.getMessage() if throttle.filter(record) else ""

    line = "batch.refused status=401"
    assert [line, line, "", ""] == [logged(source) for source in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2")]
    sources = [f"2001:db8::{number:x}" for number in range(3 * MAX_THROTTLED_LINES)]
    assert MAX_THROTTLED_LINES - 1 == sum(logged(source) == line for source in sources)
    now += THROTTLE_SECONDS
    assert f"{line} (1 more since the last such line)" == logged("192.0.2.1")
    assert line == logged(sources[-1])


def test_what_a_database_that_is_away_keeps_waiting_is_told_now_and_then_each_by_itself() -> None:
    now = 1000.0
    seldom = LogThrottle(lambda: now)

    def told(name: str, what: str, level: int = logging.WARNING) -> str:
        record = logging.LogRecord(name, level, "", 0, "%s waits: %s", (what, "it is away"), None)
        return record.getMessage() if seldom.filter(record) else ""

    judging, compaction = (worker.__name__, "judging"), (worker.__name__, "compaction")
    assert ["judging waits: it is away", "", ""] == [told(*judging) for _ in range(3)]
    assert ["compaction waits: it is away", ""] == [told(*compaction) for _ in range(2)]
    assert 2 * ["delivering waits: it is away"] == [
        told(worker.__name__, "delivering", logging.ERROR) for _ in range(2)
    ]
    now += THROTTLE_SECONDS
    assert "judging waits: it is away (2 more since the last such line)" == told(*judging)


@pytest.mark.parametrize("text", ["plain words", "größer als 1 · 2¹⁶", "日本語"])
def test_what_can_be_read_stays_as_it_is(text: str) -> None:
    assert text == escaped(text)


def test_the_log_of_a_collector_holds_its_own_lines_and_no_run_s(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "ammeter_server", "serve", "--port", str(port), "--notify", "json://127.0.0.1:9/"]
    command += ["--database-url", f"sqlite:///{tmp_path / 'c.db'}"]
    with log.open("w") as out, forked.Popen(command, imports=forked.COLLECTOR, stdout=out, stderr=out) as server:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                wait_until(lambda: answers(client))
                stream = Stream(client, name=HOSTILE, project=HOSTILE, config={HOSTILE: HOSTILE})
                train(stream, 0, 40)
                break_down(stream, 41, 60)
                stream.send()
                wait_until(lambda: ": attempt 1 for" in log.read_text())
        finally:
            server.terminate()
    lines = log.read_text().splitlines()
    own = re.compile(r"Ammeter collector at |\d{4}-\d\d-\d\d [\d:,]+ (INFO|WARNING|ERROR) [\w.]+: ")
    assert [] == [line for line in lines if not own.match(line)]


def test_what_opens_closes_is_sent_and_is_refused_is_a_line_each_without_secrets(tmp_path: Path) -> None:
    port, log, receiver = free_port(), tmp_path / "log", Receiver()
    (tmp_path / "token").write_text("f" * 40)
    command = [sys.executable, "-m", "ammeter_server", "serve", "--port", str(port)]
    command += ["--database-url", f"sqlite:///{tmp_path / 'c.db'}", "--notify", f"{receiver.apprise}?-X-Secret=s3cret"]
    environment = os.environ | {"AMMETER_SERVER_TOKEN_FILE": str(tmp_path / "token")}
    head = {"Authorization": "Bearer " + "f" * 40}
    with (
        log.open("w") as out,
        forked.Popen(command, imports=forked.COLLECTOR, stdout=out, stderr=out, env=environment) as server,
    ):
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, headers=head) as client:
                wait_until(lambda: answers(client))
                stream = Stream(client, name='a b="c"', project="speech")
                train(stream, 0, 40)
                break_down(stream, 41, 60)
                stream.send()
                wait_until(lambda: "notification.sent" in log.read_text())
                stream.bye(60, "exception")
                stream.send()
                (incident,) = client.get("/api/v1/incidents").json()["items"]
                client.post(f"/api/v1/incidents/{incident['id']}/close", headers={"X-Ammeter-Request": "test"})
                for _ in range(3):
                    client.post(f"/api/v1/runs/{stream.run}/streams/{'0' * 32}/frames?offset=0&end=9", content=b"x")
                client.post(
                    f"/api/v1/runs/{stream.run}/streams/{'0' * 32}/frames?offset=0&end=9",
                    content=b"\x81\xa5items\xdd\xff\xff\xff\xff",
                    headers={"Content-Type": frames.CONTENT_TYPE},
                )
                for number in range(3):
                    client.post(
                        f"/api/v1/runs/{stream.run}/streams/{'0' * 32}/frames?offset=0&end=9",
                        headers={"Authorization": f"Bearer wr0ng{number % 2}"},
                    )
                wait_until(lambda: "run.ended" in log.read_text())
        finally:
            server.terminate()
            receiver.stop()
    said = [line.split(": ", 1)[1] for line in log.read_text().splitlines() if " INFO ammeter_server." in line]
    run = f"run={stream.run} project=speech"
    found = f"incident={incident['id']} {run} verdict=nonfinite-gradient severity=page step=41"
    assert f'run.opened {run} name="a b=\\"c\\""' in said
    assert f"incident.opened {found}" in said
    assert f'incident.closed {found} reason="by hand"' in said
    assert f"run.ended {run} outcome=failed" in said
    sent = [line for line in said if line.startswith("notification.sent ")]
    assert sent
    assert all(f"incident={incident['id']} kind=" in line for line in sent)
    refused = [line for line in said if line.startswith("batch.refused status=415 ")]
    assert 1 == len(refused)  # of three, in a minute
    too_many = [line for line in said if line.startswith("batch.refused status=413 limit=items ")]
    assert [True] == [f"run={stream.run} stream={'0' * 32} " in line for line in too_many]
    (rejected,) = [line for line in said if line.startswith("batch.refused status=401 ")]  # of three, in a minute
    assert f" source=127.0.0.1 run={stream.run} " in rejected
    assert "AMMETER_TOKEN" in rejected
    assert "`ammeter-server token create` makes one" in rejected
    assert not {"s3cret", "f" * 40, "wr0ng0", "wr0ng1"} & set(re.findall(r"\w+", log.read_text()))


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False
