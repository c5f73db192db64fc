from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ammeter_server.__main__ import main
from tests.server.notify.test_channel import receiving


@pytest.fixture(autouse=True)
def no_channels_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY", "NOTIFY_FILE", "ALERTMANAGER_URL"):
        monkeypatch.delenv(f"AMMETER_SERVER_{name}", raising=False)


def test_every_channel_is_told_and_who_does_not_take_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with receiving() as takes, receiving(refusals=1) as refuses:
        assert 1 == main(["notify", "test", "--json", "--notify", takes.url, "--notify", refuses.url])
        assert 0 == main(["notify", "test", "--notify", takes.url])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()[:2]]
    assert [True, False] == [outcome["error"] is None for outcome in told]
    assert 2 == len(takes.said)
    assert [] == refuses.said


@pytest.mark.parametrize(("words", "kind"), [([], "warning"), (["--severity", "page"], "failure")])
def test_the_message_is_a_ticket_or_a_page_as_it_was_asked_for(words: list[str], kind: str) -> None:
    with receiving() as pager:
        assert 0 == main(["notify", "test", "--notify", pager.url, "--public-url", "https://ammeter.example", *words])
    (said,) = pager.said
    assert (kind, "[test] Ammeter can reach you") == (said["type"], said["title"])
    assert "https://ammeter.example" in said["message"]
    assert "No action is needed" in said["message"]


def test_what_a_channel_answers_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with serving_answers(b"[/b] is no markup") as url:
        assert 1 == main(["notify", "test", "--alertmanager", url])
    assert "Alertmanager answered 500: [/b] is no markup" in capsys.readouterr().out


@contextmanager
def serving_answers(body: bytes) -> Iterator[str]:
    """The URL of a web server that answers 500 with this body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_where_nobody_is_told_it_says_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["notify", "test"])
    assert "there is no channel; set AMMETER_SERVER_NOTIFY" in capsys.readouterr().err
