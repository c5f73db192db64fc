"""`ammeter doctor`: what it says is so, and what will not work it says with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ammeter import doctor, journal
from ammeter.doctor import folder
from ammeter.doctor.line import Line
from ammeter.doctor.page import show
from ammeter.shipper.answers import DATA_STAYS
from tests import forked, parts
from tests.agent.collector_double import collector_double


def about(name: str, lines: list[Line] | None = None) -> Line:
    (found,) = [line for line in (lines or list(doctor.examine())) if line.about == name]
    return found


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `ammeter doctor` as a fork of a process that has imported torch."""
    command = [sys.executable, "-m", "ammeter", "doctor", *words]
    variables = {**os.environ, **environment}
    return forked.run(command, imports=forked.LAUNCH, capture_output=True, timeout=120, env=variables)


@pytest.fixture
def answers(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """A server that answers /readyz and frames as the dict says; (its URL, the dict)."""
    data: dict[str, Any] = {
        "ready": (200, {"status": "ready"}),
        "frames": (200, {"offset": 0}),
        "date": None,
        "seen": [],
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(*data["ready"])

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            data["seen"].append((self.path, self.headers.get("Authorization")))
            self._say(*data["frames"])

        def date_time_string(self, timestamp: float | None = None) -> str:
            return data["date"] or super().date_time_string(timestamp)

        def _say(self, status: int, content: Any) -> None:
            body = json.dumps(content, separators=(",", ":")).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", data
    server.shutdown()
    thread.join()
    server.server_close()


def test_on_a_machine_where_all_works_it_says_so_and_ends_with_0(tmp_path: Path) -> None:
    done = call()
    assert 0 == done.returncode, done.stdout
    assert f"ok    python: Python {sys.version.split()[0]}" in done.stdout
    assert "ok    torch: " in done.stdout
    assert f"ok    journal: {os.environ['AMMETER_DIR']}, private, " in done.stdout
    assert "note  collector: not set; journals stay on this machine" in done.stdout
    assert "fail" not in done.stdout
    assert [] == list(Path(os.environ["AMMETER_DIR"]).iterdir())


def test_what_will_not_work_is_named_at_the_end_and_in_the_exit_code() -> None:
    done = call(AMMETER_URL="http://127.0.0.1:9")
    assert 1 == done.returncode
    assert "fail  collector: http://127.0.0.1:9 does not respond: " in done.stdout
    assert "-> start the collector (ammeter-server serve), or check the port in AMMETER_URL" in done.stdout
    assert done.stdout.endswith("This set-up does not work: collector.\n")


def test_programs_read_it_as_json() -> None:
    done = call("--json", AMMETER_URL="http://127.0.0.1:9")
    document = json.loads(done.stdout)
    assert (1, False) == (done.returncode, document["works"])
    assert {"level", "about", "text", "remedy"} == set(document["lines"][0])
    assert ["fail"] == [line["level"] for line in document["lines"] if line["about"] == "collector"]


def test_without_torch_it_says_what_is_missing_and_looks_at_the_rest(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is broken')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    command, variables = [sys.executable, "-m", "ammeter", "doctor"], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    assert 1 == done.returncode
    assert "fail  torch: cannot be imported (ImportError: libtorch.so is broken)" in done.stdout
    assert "ok    journal: " in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "said", "remedy"),
    [
        ("AMMETER_BUDGET", "lots", "AMMETER_BUDGET is 'lots'", "use a number such as 0.01."),
        (
            "AMMETER_URL",
            "ftp://x",
            "AMMETER_URL is 'ftp://x'",
            "use http:// or https://, such as http://127.0.0.1:8480",
        ),
        ("AMMETER_FLUSH", "-1", "AMMETER_FLUSH is -1.0", "use seconds from 0, which never waits, to 3600"),
    ],
)
def test_a_setting_that_is_wrong_is_told_with_its_remedy(
    name: str, value: str, said: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert Line("fail", "settings", said, remedy) == about("settings")


def test_being_disabled_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    assert "warn" == about("settings").level


def test_a_folder_that_cannot_be_written_fails() -> None:
    line = about("journal", list(folder.lines(Path("/proc/ammeter"))))
    assert ("fail", "set AMMETER_DIR to a folder that belongs to you") == (line.level, line.remedy)
    assert line.text.startswith("/proc/ammeter cannot be used (")


def test_a_link_instead_of_a_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert "fail" == about("journal", list(folder.lines(tmp_path / "link"))).level


def test_a_folder_that_is_nearly_full_is_a_warning(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place]).returncode:
        parts.missing("a tmpfs can only be mounted by root who has the right to; run this test in such a container")
    try:
        line = about("journal", list(folder.lines(place)))
    finally:
        subprocess.run(["umount", "-l", place], check=True)
    assert ("warn", f"{place}, 8 MiB free") == (line.level, line.text)


def test_a_collector_that_takes_what_we_send_is_fine(
    answers: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, said = answers
    monkeypatch.setenv("AMMETER_TOKEN", "secret")
    lines = list(doctor.examine(url))
    assert about("collector", lines).text.startswith(f"{url} is ready and answers in ")
    assert Line("ok", "token", "the collector accepts runs with this token") == about("token", lines)
    ((path, authorization),) = said["seen"]
    assert path.endswith("frames?offset=0&end=0")
    assert "Bearer secret" == authorization
    assert "clock" not in [line.about for line in lines]


def test_a_token_that_is_not_taken_fails(answers: tuple[str, dict[str, Any]]) -> None:
    url, said = answers
    said["frames"] = 401, {"title": "Unauthorized", "detail": "the request has no token"}
    line = about("token", list(doctor.examine(url)))
    text = "the collector rejects a request without a token: 401 the request has no token"
    assert ("fail", text) == (line.level, line.text)
    assert "scope ingest" in line.remedy


def test_a_collector_that_has_more_than_it_was_sent_fails(answers: tuple[str, dict[str, Any]]) -> None:
    url, said = answers
    said["frames"] = 200, {"offset": 2**63 - 1}
    line = about("token", list(doctor.examine(url)))
    text = f"the collector reports {2**63 - 1} bytes of a run that is empty"
    assert ("fail", text) == (line.level, line.text)
    assert line.remedy.startswith("check that AMMETER_URL")


def test_a_run_that_the_collector_refuses_is_a_warning(tmp_path: Path) -> None:
    assert [] == list(folder.refused_runs(tmp_path))
    for number, stream in enumerate(("a", "b")):
        (tmp_path / "run" / stream).mkdir(parents=True)
        journal.note_refusal(tmp_path / "run" / stream, f"{stream} is not delivered{DATA_STAYS}see to it")
        os.utime(tmp_path / "run" / stream / journal.REFUSAL_FILE, (number, number))
    (line,) = folder.refused_runs(tmp_path)
    assert Line("warn", "delivery", f"{tmp_path / 'run'}: b is not delivered, and 1 more", "see to it") == line


def test_a_collector_that_is_not_ready_fails(answers: tuple[str, dict[str, Any]]) -> None:
    url, said = answers
    said["ready"] = 503, {"detail": "the database does not answer"}
    line = about("collector", list(doctor.examine(url)))
    assert ("fail", f"{url}/readyz answers 503 the database does not answer") == (line.level, line.text)


def test_what_is_no_collector_fails(answers: tuple[str, dict[str, Any]]) -> None:
    url, said = answers
    said["ready"] = 200, {"welcome": "to somebody's page"}
    line = about("collector", list(doctor.examine(url)))
    assert ("fail", "check that AMMETER_URL is the address of a collector") == (line.level, line.remedy)


def test_a_clock_that_goes_otherwise_is_a_warning(answers: tuple[str, dict[str, Any]]) -> None:
    url, said = answers
    said["date"] = "Fri, 01 Jan 2100 00:00:00 GMT"
    line = about("clock", list(doctor.examine(url)))
    assert "warn" == line.level
    assert line.text.startswith("the collector's clock is +")


def test_a_name_that_nobody_knows_and_a_proxy_that_is_not_used_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    lines = list(doctor.examine("https://collector.invalid"))
    assert "check the name 'collector.invalid', or this machine's DNS" == about("collector", lines).remedy
    assert "HTTPS_PROXY is set, but the shipper uses no proxy" == about("proxy", lines).text


def test_what_speaks_no_tls_is_told_in_words(answers: tuple[str, dict[str, Any]]) -> None:
    url, _ = answers
    line = about("collector", list(doctor.examine(url.replace("http://", "https://"))))
    assert "fail" == line.level
    assert line.remedy.startswith("set SSL_CERT_FILE") or "port" in line.remedy


def test_a_terminal_obeys_nothing_that_a_server_says(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    show([Line("fail", "collector", "answers \x1b[2J\x07", "do\x1b this")], Console(force_terminal=True, width=100))
    output = capsys.readouterr().out
    assert "\x1b[2J" not in output
    assert "\x07" not in output
    assert "This set-up does not work: collector." in output


def test_a_user_and_a_password_in_the_address_are_used_and_not_shown(tmp_path: Path) -> None:
    secret = "pass" + "Word771"
    with collector_double() as double:
        url = double.url.replace("http://", f"http://bob:{secret}@")
        lines = [str(line) for line in doctor.examine(url, str(tmp_path))]
    assert any("127.0.0.1" in line for line in lines)
    assert secret not in str(lines)
    assert secret not in str(list(doctor.examine(url, str(tmp_path)))), "where nobody answers"
    assert secret not in str(list(doctor.examine(url.replace("http", "htps"), str(tmp_path)))), "where it is none"
