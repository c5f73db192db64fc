"""The weekly report by mail, through a real SMTP conversation."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path

import pytest

from ammeter_server.__main__ import main
from tests.server.feeding import Stream, serving, train, wait_until

Output = pytest.CaptureFixture[str]


@dataclass
class Mailbox:
    """A mail server that accepts everything, or refuses every message."""

    port: int = 0
    refuses: bool = False
    mails: list[bytes] = field(default_factory=list)


@contextmanager
def mailbox(*, refuses: bool = False) -> Iterator[Mailbox]:
    box = Mailbox(refuses=refuses)

    class Conversation(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 ready")
            while (line := self.rfile.readline().strip().upper()) not in (b"", b"QUIT"):
                if line == b"DATA":
                    self.say("554 no" if box.refuses else "354 go on")
                    if not box.refuses:
                        box.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                        self.say("250 kept")
                else:
                    self.say("250 fine")
            self.say("221 bye")

        def say(self, words: str) -> None:
            self.wfile.write(f"{words}\r\n".encode())

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Conversation)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    box.port = server.server_address[1]
    try:
        yield box
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("collector")
    with serving(folder) as client:
        stream = Stream(client, name="nightly", project="speech")
        train(stream, 0, 20)
        stream.bye(20)
        stream.send()
        wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}").json()["state"] == "ended")
    return f"sqlite:///{folder / 'collector.db'}"


def url_of(box: Mailbox) -> str:
    return f"mailto://127.0.0.1:{box.port}?from=ammeter@lab.example&to=team@lab.example&mode=insecure"


def test_the_report_is_mailed_to_the_mail_channels_of_the_project_alone(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    with mailbox() as team, mailbox() as others, mailbox() as pages:
        routes = tmp_path / "routes"
        lines = (f'"{url_of(team)}"', f'"{url_of(others)}" project=vision', f'"{url_of(pages)}" severity=page')
        routes.write_text("\n".join(lines) + "\njson://127.0.0.1:9/\n")
        monkeypatch.setenv("AMMETER_SERVER_NOTIFY_FILE", str(routes))
        assert 0 == main(["report", "speech", "--week", "--send", "--database-url", database])
    assert [1, 0, 0] == [len(box.mails) for box in (team, others, pages)]
    mail = message_from_bytes(team.mails[0])
    (text,) = [part for part in mail.walk() if part.get_content_type() == "text/plain"]
    body = text.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert "Ammeter: speech, 7 days" in str(mail["Subject"])
    assert "## What to do" in body.decode()
    output = capsys.readouterr()
    assert output.out.startswith("# speech: ")
    assert "sent to mailto-" in output.err


def test_a_mail_that_is_refused_is_an_error_without_its_secrets(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    with mailbox(refuses=True) as box:
        monkeypatch.setenv("AMMETER_SERVER_NOTIFY", url_of(box).replace("//", "//ann:hunter22@"))
        assert 1 == main(["report", "speech", "--send", "--database-url", database])
    error = capsys.readouterr().err
    assert "ammeter-server: mailto-" in error
    assert "hunter22" not in error


def test_without_a_mail_channel_nothing_is_sent_and_the_remedy_is_said(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("AMMETER_SERVER_NOTIFY", "json://127.0.0.1:9/")
    assert 2 == main(["report", "speech", "--send", "--database-url", database])
    assert "no mail channel receives tickets of project 'speech'; add a mailto:// URL" in capsys.readouterr().err
