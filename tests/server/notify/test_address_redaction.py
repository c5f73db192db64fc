"""Credentials of channels and databases are used and told nobody: in deliveries, logs, metrics, on the terminal."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import select

from ammeter.wire.frames import Bye, Hello
from ammeter_server.__main__ import main
from ammeter_server.config.settings import Settings, SettingsError
from ammeter_server.db import connect
from ammeter_server.db.tables import streams
from ammeter_server.notify.address_redaction import concealing
from ammeter_server.notify.channel import Channel, DeliveryError, open_channels
from ammeter_server.process import logging as logs
from tests.server.feeding import Stream, break_down, serving, train, wait_until

PASSWORD = "pa%40ss" + "Word77"
PLAIN = "pa@ss" + "Word77"
ISSUED = "gh" + "p_" + "A1b2" * 9
TOLD = {"kind": "opened", "severity": "page", "title": "It fell", "body": "Cause: why", "alert": {}, "over": 2**62}


@dataclass
class Demanding:
    """A web server that wants a user and a password, and says back what it was asked with when it does not get them."""

    url: str = ""
    taken: list[str] = field(default_factory=list)


@contextmanager
def demanding() -> Iterator[Demanding]:
    place = Demanding()
    wanted = "Basic " + base64.b64encode(f"bob:{PLAIN}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            given = self.headers.get("Authorization", "")
            if given == wanted:
                place.taken.append(self.path)
            body = b"{}" if given == wanted else f"no: {self.path} {given}".encode()
            self.send_response(200 if given == wanted else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    place.url = f"127.0.0.1:{server.server_port}"
    try:
        yield place
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def channel(**settings: Any) -> Channel:
    (only,) = open_channels(Settings(**settings)).values()
    return only


def test_an_alertmanager_gets_its_password_as_basic_authentication() -> None:
    with demanding() as place:
        only = channel(alertmanagers=(f"http://bob:{PASSWORD}@{place.url}/",))
        only.send([TOLD])
    assert ["/api/v2/alerts"] == place.taken
    assert f"alertmanager-{place.url}" == only.name


@pytest.mark.parametrize("scheme", ["http", "json"])
def test_what_a_channel_answers_is_told_without_the_password(scheme: str) -> None:
    wrong = "wrong" + "Secret9"
    with demanding() as place:
        url = f"{scheme}://bob:{wrong}@{place.url}/hook/path-{wrong}"
        only = channel(alertmanagers=(url,)) if scheme == "http" else channel(notify=(url,))
        with pytest.raises(DeliveryError) as refused:
            only.send([TOLD])
        assert "401" in str(refused.value) or scheme == "json"
        assert_hidden(str(refused.value), wrong)
        assert_hidden(only.name, wrong)
    with pytest.raises(DeliveryError) as away:
        only.send([TOLD])
    assert_hidden(str(away.value), wrong)


def assert_hidden(said: str, *secrets: str) -> None:
    sent = [base64.b64encode(f"bob:{secret}".encode()).decode() for secret in (*secrets, PLAIN)]
    for value in (*secrets, PASSWORD, PLAIN, *sent):
        assert value not in said, said


@pytest.mark.parametrize("rest", ["?token=abcdefgh1", "/#x", "/am?"])
def test_a_query_in_the_url_of_an_alertmanager_is_refused_at_the_start(rest: str) -> None:
    with pytest.raises(SettingsError, match="query or fragment") as wrong:
        Settings(alertmanagers=(f"http://bob:{PASSWORD}@127.0.0.1:9093{rest}",))
    assert_hidden(str(wrong.value), "abcdefgh1")
    assert "http://127.0.0.1:9093" in str(wrong.value)


@pytest.mark.parametrize("url", ["ftp://bob:{0}@h:9093", "http://bob:{0}@", "http://bob:{0}@h:99999999"])
def test_a_wrong_url_of_an_alertmanager_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="ALERTMANAGER_URL") as wrong:
        Settings(alertmanagers=(url.format(PASSWORD),))
    assert_hidden(str(wrong.value))


def test_settings_print_no_credentials() -> None:
    settings = Settings(
        database_url=f"postgresql://bob:{PASSWORD}@h/db", alertmanagers=(f"http://bob:{PASSWORD}@127.0.0.1:9093",)
    )
    assert_hidden(repr(settings))


def test_neither_deliveries_nor_log_nor_metrics_show_credentials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = "Tok" + "enAbc123"
    notify = (f"json://bob:{PASSWORD}@127.0.0.1:9/{token}", f"slack://{token}A/{token}B/{token}C9876/#general")
    caplog.handler.setFormatter(logs.OneLine(logs.FORMAT))
    with (
        caplog.at_level(logging.WARNING),
        serving(tmp_path, notify=notify[:1], alertmanagers=(f"http://bob:{PASSWORD}@127.0.0.1:9/{token}",)) as client,
    ):
        stream = Stream(client)
        train(stream, 0, 40)
        break_down(stream, 41, 60)
        stream.send()
        (incident, *_) = wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])
        path = f"/api/v1/incidents/{incident['id']}/deliveries"
        wait_until(lambda: len(failed(client, path)) == 2)
        shown = json.dumps(failed(client, path)) + client.get("/metrics/self").text + client.get("/metrics").text
    assert "alertmanager-127.0.0.1:9" in shown
    assert_hidden(shown, token)
    ours = "\n".join(record.getMessage() for record in caplog.records if logs.WithoutApprise().filter(record))
    assert "attempt 1 for" in ours
    assert_hidden(ours, token)


def failed(client: httpx.Client, path: str) -> list[Any]:
    return [row for row in client.get(path).json()["items"] if row["error"]]


class Older(Stream):
    """A stream of an agent that did not yet withhold anything."""

    def hello(self) -> Hello:
        data = {"torch": "2.4.0", "command": f"python train.py --hub-token {PLAIN} --key {ISSUED}"}
        return msgspec.structs.replace(super().hello(), environment=data)


def test_what_an_older_agent_says_is_stored_without_secrets(tmp_path: Path) -> None:
    config = {"db": {"password": PLAIN}, "note": ISSUED}
    tags = {"api_key": PLAIN, "note": f"by {ISSUED}"}
    with serving(tmp_path) as client:
        stream = Older(client, name=f"try {ISSUED}", project=f"p {ISSUED}", config=config, tags=tags)
        train(stream, 0, 3)
        stream.say("note.said", 2, why=f"login with password={PLAIN}", deep=[{"token": PLAIN, "note": ISSUED}], steps=7)
        stream.pack()
        stream.items.append(Bye("exception", 3, stream.time(3), f"RuntimeError: {ISSUED} and api_key={PLAIN}"))
        stream.send()
        path = f"/api/v1/runs/{stream.run}"
        run = client.get(path).json()
        answers = [client.get(path + rest).text for rest in ("", "/events", "/streams", "/incidents")]
        answers += [client.get(page).text for page in (f"/runs/{stream.run}", "/api/v1/runs", "/metrics")]
    assert "python train.py --hub-token (not sent) --key (not sent)" == run["command"].replace("'", "")
    assert {"db": {"password": "(not sent)"}, "note": "(not sent)"} == run["config"]
    assert {"api_key": "(not sent)", "note": "by (not sent)"} == run["tags"]
    assert "try (not sent)" == run["name"]
    assert '"steps":7' in answers[1]
    assert "login with password=(not sent)" in answers[1]
    store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
    with store.reading() as connection:
        assert "RuntimeError: (not sent) and api_key=(not sent)" in str(connection.execute(select(streams.c.bye)).all())
    store.close()
    written = b"".join(file.read_bytes() for file in tmp_path.glob("collector.db*"))
    for secret in (PLAIN, ISSUED):
        assert secret not in "".join(answers)
        assert secret.encode() not in written


def test_of_a_url_only_where_it_leads_is_told() -> None:
    a, b, c = ("Tok" + f"en{letter}xyz9" for letter in "ABC")
    conceal = concealing(f"slack://{a}/{b}/{c}/#general")
    assert_hidden(conceal(f"POST https://hooks.example/{a}/{b} failed, {c}"), a, b, c)
    conceal = concealing(f"jsons://bob:{PASSWORD}@hooks.example:8443/path/{a}?key={b}")
    text = conceal(f"hooks.example:8443 refused {PLAIN} at /path/{a}?key={b}")
    assert text.startswith("hooks.example:8443 refused (not sent)")
    assert_hidden(text, a, b)


def test_the_log_holds_no_secrets_of_urls_and_nothing_that_apprise_says_itself() -> None:
    url = f"postgresql://u:{PASSWORD}@h/d"
    record = logging.LogRecord("ammeter_server.x", logging.ERROR, "", 1, "no %s", (url,), None)
    try:
        raise RuntimeError(url)
    except RuntimeError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    text = logs.OneLine(logs.FORMAT).format(record)
    assert "postgresql://(not sent)@h/d" in text
    assert_hidden(text)
    assert not logs.WithoutApprise().filter(logging.LogRecord("apprise", logging.WARNING, "", 1, "x", (), None))


@pytest.mark.parametrize("command", [["serve"], ["migrate"]])
@pytest.mark.parametrize("query", ["", "?password=q" + "Secret99"])
def test_a_database_that_does_not_answer_is_said_without_its_password(
    command: list[str], query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"postgresql://bob:{PASSWORD}@127.0.0.1:9/db{query}"
    assert 2 == main([*command, "--database-url", url])
    captured = capsys.readouterr()
    assert "127.0.0.1" in captured.err
    assert_hidden(captured.out + captured.err, "qSecret99")
