"""What a sender who means harm may say, on SQLite and on PostgreSQL: every page, number and line stays whole."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from ammeter.wire import codec, frames
from ammeter.wire.frames import Batch, Event, Hello, Schema, Tensor
from ammeter_server.config.links import Links
from ammeter_server.db.queries import paging as pages_of
from ammeter_server.incidents.lifecycle import Incident
from ammeter_server.notify.messages import message
from ammeter_server.runs.ownership import RunLabels
from tests.server.databases import postgresql
from tests.server.feeding import BEGIN, STEP, Stream, break_down, serving, train, wait_until

LARGEST = 2**31 - 1
NAMES = {
    "controls": "".join(map(chr, range(32))) + "\x7f\x85\x1b[2J\x1b]0;title\x07",
    "html": "</script><script>window.broken=1</script><img src=x onerror=alert(1)>&amp;<!--",
    "quotes": '\'"`\\\'; drop table runs; --" or ""="',
    "line ends": "a\nb\rc\r\nd\u2028e\u2029f\vg\fh",
    "turned round": "\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c",
    "labels": '",run="x"} 1\n# TYPE forged counter\nforged 1\n{',
    "templates": "{{7*7}} ${7*7} #{7*7} %s%n %(message)s {0} {{.Labels}}",
    "no characters": "\ufffe\uffff\U0010ffff\u0000",
    "many marks": "e" + "\u0301" * 900,
    "long": "x" * 1024,
}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with ExitStack() as stack:
        url = "" if request.param == "sqlite" else request.getfixturevalue("database")
        yield stack.enter_context(serving(tmp_path_factory.mktemp("both"), url))


def broken(client: httpx.Client, said: str, **more: Any) -> Stream:
    """A run that says this wherever it can, and has an incident with it."""
    tensors = tuple(Tensor(f"{name} {said}"[:1024], (64, 16), said[:1024]) for name in ("embed", "head"))
    schema = Schema(tuple(frames.SCALARS), tuple(frames.STATS), tensors)
    data = {"config": {said: said}, "tags": {said: said}} | more
    stream = Stream(client, name=said[:1024], project=said[:1024], schema=schema, **data)
    train(stream, 0, 40)
    break_down(stream, 41, 60, tensors[0].name)
    stream.say(said[:1024], 60, **{said: said})
    stream.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])
    return stream


def pages(run: str) -> list[str]:
    of_run = ["", "/events", "/incidents", "/tensors", "/series?names=loss", "/series?names=grad_norm&merged=true"]
    own = [f"/api/v1/runs/{run}{path}" for path in (*of_run, f"/compare/{run}")]
    return [*own, "/api/v1/runs", "/api/v1/incidents", "/metrics", "/metrics/self", f"/runs/{run}", "/", "/livez"]


def check_pages(client: httpx.Client, run: str) -> None:
    answers = {path: client.get(path).status_code for path in pages(run)}
    assert dict.fromkeys(pages(run), 200) == answers


@pytest.mark.parametrize("name", NAMES)
def test_no_name_breaks_a_page_a_number_or_a_line(
    client: httpx.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = broken(client, NAMES[name])
    check_pages(client, stream.run)
    document = client.get(f"/api/v1/runs/{stream.run}").json()
    for shown in (document["name"], document["project"]):
        assert 1 == len(shown.splitlines())
        assert not {"\u202e", "\u2066", "\x1b", "\x00"} & set(shown)
    metrics = client.get("/metrics").text
    assert "forged" not in {line.partition("{")[0].partition(" ")[0] for line in metrics.splitlines()}
    assert [] == [line for line in metrics.splitlines() if not line.startswith(("ammeter_", "# "))]
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_found_by_itself_and_finds_nothing_else(client: httpx.Client, name: str) -> None:
    stream = broken(client, NAMES[name])
    project = client.get(f"/api/v1/runs/{stream.run}").json()["project"]
    found = client.get("/api/v1/runs", params={"project": project}).json()["items"]
    assert stream.run in [run["id"] for run in found]
    assert {project} == {run["project"] for run in found}


def test_a_notification_of_a_hostile_name_has_the_lines_of_any_other() -> None:
    texts = {"title": "It fell", "cause": "why", "fix": "do"}
    shapes = []
    for said in ("name", NAMES["line ends"] + NAMES["controls"] + NAMES["turned round"]):
        given: dict[str, Any] = {name: f"{text} {said}" for name, text in texts.items()}
        incident = Incident(
            run="r", id="r.v.1", verdict="v", number=1, severity="page", state="open", times=1, opened=1, first_step=1,
            opened_step=1, last_step=1, stream="s", rank=0, tensor=said, module=said, caller=said, **given,
        )  # fmt: skip
        sent = message("opened", incident, RunLabels(said, said, said, said), Links("http://page"))
        assert sent["title"].isprintable()
        assert all(line.isprintable() for line in sent["body"].split("\n"))
        shapes.append([line.partition(":")[0] for line in sent["body"].split("\n")])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "said",
    [
        {"rank": LARGEST - 1, "world_size": LARGEST},
        {"rank": LARGEST - 1, "world_size": 1},
        {"begin": 2**63 - 1 - 100 * STEP},
        {"begin": 1},
        {"config": {"baseline": "x" * 100_000}},
        {"config": {"baseline": {"a": [1]}}},
        {"tags": {"baseline": "\x00", "validation_delta": "nan"}},
        {"tags": {"validation_delta": "9" * 5000}},
    ],
    ids=lambda said: "-".join(said),
)
def test_numbers_at_the_end_of_their_range_cost_no_more_than_others(client: httpx.Client, said: dict[str, Any]) -> None:
    stream = broken(client, "plain", **said)
    check_pages(client, stream.run)


def test_a_clock_that_is_ahead_puts_a_run_above_no_later_one_and_lets_it_end(client: httpx.Client) -> None:
    ahead = Stream(client, begin=time.time_ns() + 10 * 365 * 86_400 * 10**9)
    train(ahead, 0, 5)
    ahead.bye(5)
    ahead.send()
    later = Stream(client, begin=time.time_ns())
    train(later, 0, 5)
    later.send()
    told = [run["id"] for run in client.get("/api/v1/runs").json()["items"]]
    assert told.index(later.run) < told.index(ahead.run)
    path, now = f"/api/v1/runs/{ahead.run}", datetime.now(UTC).isoformat()
    over = wait_until(lambda: (run := client.get(path).json())["state"] == "ended" and run)
    assert over["started"] <= over["ended"] < datetime.now(UTC).isoformat()
    assert over["started"] < now


def test_a_run_that_names_itself_as_its_baseline_is_judged_all_the_same(client: httpx.Client) -> None:
    run = str(uuid.uuid4())
    check_pages(client, broken(client, "itself", run=run, tags={"baseline": run}).run)


NUMBERS = ["2147483647", "2147483648", "9007199254740993", "9223372036854775807", "9" * 30, "-1"]
NUMBERED = ["events?rank", "tensors?rank", "series?names=loss&rank", "events?from", "events?to"]


def test_a_number_that_no_column_holds_is_a_problem_of_who_asked(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 1)
    stream.send()
    paths = [f"/api/v1/runs/{stream.run}/{path}={number}" for path in NUMBERED for number in NUMBERS]
    answers = {path: client.get(path).status_code for path in paths}
    assert {} == {path: status for path, status in answers.items() if status not in (200, 422)}


def walked(client: httpx.Client, path: str, **asked: Any) -> list[list[str]]:
    """The ids on each page of a list."""
    pages, after = list[list[str]](), ""
    while after or not pages:
        document = client.get(path, params={**asked, **({"page_token": after} if after else {})}).json()
        pages.append([run["id"] for run in document["items"]])
        after = document["next_page_token"] or ""
    return pages


def test_a_page_of_runs_that_say_much_ends_early_and_the_next_goes_on(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_of, "MAX_PAGE_BYTES", 2_500)
    made = list[str]()
    for number in range(5):
        stream = Stream(client, project="much", begin=BEGIN + number, config={"x": "y" * 1_000}, tags={})
        train(stream, 0, 1)
        stream.send()
        made.insert(0, stream.run)
    assert [made[:2], made[2:4], made[4:]] == walked(client, "/api/v1/runs", project="much", page_size=4)
    monkeypatch.setattr(pages_of, "MAX_PAGE_BYTES", 10)
    assert [[run] for run in made] == walked(client, "/api/v1/runs", project="much", page_size=4)


def test_a_page_of_events_that_say_much_ends_early_and_the_next_goes_on(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_of, "MAX_PAGE_BYTES", 2_500)
    stream = Stream(client)
    for step in range(5):
        stream.say("much.said", step, x="y" * 1_000)
    stream.send()
    told = [f"{stream.stream}.{number}" for number in reversed(range(5))]
    assert [told[:2], told[2:4], told[4:]] == walked(client, f"/api/v1/runs/{stream.run}/events", page_size=4)


@pytest.mark.parametrize("path", ["/runs/{run}/events?name=", "/incidents?verdict=", "/runs/{run}/incidents?verdict="])
@pytest.mark.parametrize("said", [",".join(f"a{n}.*" for n in range(5_000)), "a," * 30_000], ids=["many", "one"])
def test_more_names_than_a_database_takes_are_a_problem_of_who_asked(
    client: httpx.Client, path: str, said: str
) -> None:
    stream = Stream(client)
    train(stream, 0, 1)
    stream.send()
    assert client.get(f"/api/v1{path.format(run=stream.run)}{said}").status_code in (200, 422)


SIGN_IN = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
RUNS = b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n"
RAW = {
    "a length of 5,000 digits": SIGN_IN + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a length below zero": SIGN_IN + b"Content-Length: -1\r\n\r\n",
    "two lengths": SIGN_IN + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length and chunks": SIGN_IN + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a body that breaks off": SIGN_IN + b"Content-Length: 30\r\n\r\n{",
    "a path that is no ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path that is no UTF-8": b"GET /runs/%ff%fe%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a query that is no UTF-8": RUNS.replace(b"runs ", b"runs?project=%ff%ed%a0%80 ") + b"\r\n",
    "a cookie of anything": RUNS + b'Cookie: ammeter_session=\xff"; x=\\\r\n\r\n',
    "a token of anything": RUNS + b"Authorization: Bearer \xff\xfe\t x\r\n\r\n",
    "a header on two lines": LIVE + b"X: a\n b: c\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "another protocol": LIVE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a long line": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW)
def test_a_request_that_no_client_sends_is_answered_or_closed(client: httpx.Client, name: str) -> None:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10) as line:
        line.sendall(RAW[name])
        line.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := line.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
    status = int(answer[9:12] or 400)
    assert 200 <= status < 500, answer[:300]
    assert 200 == client.get("/livez").status_code


def refusal(client: httpx.Client, hello: Hello, *more: frames.Item) -> tuple[int, Any]:
    path = f"/api/v1/runs/{hello.run}/streams/{hello.stream}/frames?offset=0&end=10"
    body = codec.encode_batch(Batch([hello, *more]))
    answer = client.post(path, content=body, headers={"Content-Type": frames.CONTENT_TYPE})
    return answer.status_code, answer.json().get("limit")


LONG = "x" * 1025
HELLOS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "a million distinct tensors": (
        "tensors",
        lambda: {"schema": Schema((), (), tuple(Tensor(f"{n}", (), "") for n in range(10**6)))},
    ),
    "a thousand and one scalars": ("scalars", lambda: {"schema": Schema(tuple(f"{n}" for n in range(1001)))}),
    "columns beyond count": (
        "columns",
        lambda: {"schema": Schema((), tuple(frames.STATS), (Tensor("w", (), "f"),) * 140_000)},
    ),
    "a long tensor": ("names", lambda: {"schema": Schema((), (), (Tensor(LONG, (), ""),))}),
    "a long scalar": ("names", lambda: {"schema": Schema((LONG,))}),
    "a long name": ("names", lambda: {"name": LONG}),
    "a name of 10 MB": ("names", lambda: {"name": "x" * 10**7}),
    "a large config": ("said", lambda: {"config": {"x": "y" * 300_000}}),
    "large tags": ("said", lambda: {"tags": {"x": "y" * 300_000}}),
}


@pytest.mark.parametrize("name", HELLOS)
def test_too_much_is_refused_with_the_limits_name(client: httpx.Client, name: str) -> None:
    limit, make = HELLOS[name]
    hello = Hello(str(uuid.uuid4()), uuid.uuid4().hex, **({"schema": Schema(("loss",))} | make()))
    assert (422, limit) == refusal(client, hello)
    assert 404 == client.get(f"/api/v1/runs/{hello.run}").status_code


@pytest.mark.parametrize(
    "event", [Event("x" * 1025, 1, 1), Event("a.b", 1, 1, {"x": "y" * 300_000})], ids=["name", "data"]
)
def test_too_large_an_event_is_refused_with_the_limits_name(client: httpx.Client, event: Event) -> None:
    status, limit = refusal(client, Hello(str(uuid.uuid4()), uuid.uuid4().hex, Schema(("loss",)), started=BEGIN), event)
    assert (422, "names" if len(event.name) > 1000 else "said") == (status, limit)
