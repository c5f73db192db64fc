"""A sender who means harm: nothing stored changes, nobody else waits, and the answer says what is wrong."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter.counters.events import MAX_SUM
from ammeter.counters.stream import MAX_REASONS, SUMS
from ammeter.wire import columns as block
from ammeter.wire import frames
from ammeter.wire.frames import Batch, Block, Event, Hello, Lost, Schema, Tensor
from ammeter_server.http.problems import Problem
from ammeter_server.ingest import stream_update, validation
from ammeter_server.runs import latest_values
from tests.parts import need
from tests.server.ingest.test_endpoint import SCHEMA, Place, Sender, of_stream, opened, rows, stored

FULL = 16 * 2**20 - 1000
HUGE = 2**63 - 1
BAD = "\u202e<img src=x onerror=alert(1)>\n\"'\\{}\r\x00\x1b[2J# TYPE x counter"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("hostile")) as place:
        yield place


@pytest.fixture
def sender(place: Place) -> Sender:
    return Sender(place.client, place.store)


def many(count: int, block: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + block * count


def body_of(*items: bytes) -> bytes:
    return b"\x81\xa5items\xdd" + len(items).to_bytes(4, "big") + b"".join(items)


def event_with(data: bytes) -> bytes:
    return b"\x85\xa4kind\xa5event\xa4name\xa3a.b\xa4step\x01\xa4time\x01\xa4data\x81\xa1x" + data


def hello_with(part: bytes) -> bytes:
    return b"\x84\xa4kind\xa5hello\xa3run\xa0\xa6stream\xa0" + part


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "empty lists": (422, lambda: body_of(event_with(many(FULL, b"\x90")))),
    "empty maps": (422, lambda: body_of(event_with(many(FULL, b"\x80")))),
    "lists in lists": (422, lambda: body_of(event_with(many(FULL // 2, b"\x91\x90")))),
    "lists in a config": (422, lambda: body_of(hello_with(b"\xa6config\x81\xa1x" + many(FULL, b"\x90")))),
    "lists in many events": (413, lambda: body_of(*[event_with(many(200_000, b"\x90"))] * 80)),
    "tensors": (422, lambda: body_of(hello_with(b"\xa6schema\x81\xa7tensors" + many(FULL // 4, b"\x93\xa0\x90\xa0")))),
    "scalars": (422, lambda: body_of(hello_with(b"\xa6schema\x81\xa7scalars" + many(FULL, b"\xa0")))),
    "items": (413, lambda: b"\x81\xa5items" + many(FULL, b"\x80")),
    "gaps": (413, lambda: b"\x81\xa4gaps" + many(FULL // 9, b"\x81\xa6reason\xa0")),
    "a member nobody knows": (422, lambda: b"\x81\xa3foo" + many(FULL, b"\x90")),
    "a list that claims 4 GiB": (413, lambda: b"\x81\xa5items\xdd\xff\xff\xff\xff"),
    "data that claim 4 GiB": (400, lambda: body_of(event_with(b"\xdd\xff\xff\xff\xff"))),
}


def peak_mib(pid: str = "self") -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory_and_holds_up_nobody(sender: Sender, name: str) -> None:
    status, make = BOMBS[name]
    body = make()
    before = peak_mib()
    with Waits(sender.client) as longest:
        answer = sender.post_body(body)
    assert (status, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert peak_mib() - before < 200, "MiB"
    assert longest() < 1.0, "seconds"
    assert [] == stored(sender, "runs")["runs"]


class Waits:
    """Asks for /livez all the time; gives the longest time that it took."""

    def __init__(self, client: httpx.Client) -> None:
        self.url = client.base_url
        self.longest = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Callable[[], float]:
        self.thread.start()
        return lambda: self.longest

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while not self.stop.is_set():
                begin = time.monotonic()
                assert 200 == client.get("/livez").status_code
                self.longest = max(self.longest, time.monotonic() - begin)


def packed_bombs() -> dict[str, Block]:
    zeros = zstandard.ZstdCompressor().compress(bytes(2**26))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**26))
    return {
        "more than it says": Block(SCHEMA.id, 100, SCHEMA.width, 0, 99, zeros),
        "without its size": Block(SCHEMA.id, 100, SCHEMA.width, 0, 99, silent),
        "rows beyond the limit": Block(SCHEMA.id, 2**62, SCHEMA.width, 0, 99, zeros),
        "columns beyond the limit": Block(SCHEMA.id, 1, 2**62, 0, 99, zeros),
    }


@pytest.mark.parametrize("name", packed_bombs())
def test_a_block_that_unpacks_to_more_than_it_says_is_refused(sender: Sender, name: str) -> None:
    sender.open()
    before = stored(sender)
    assert sender.post([packed_bombs()[name]], 10, 20).status_code in (413, 422)
    assert before == stored(sender)


def test_a_batch_of_as_many_items_as_may_be_lets_others_write_within_a_second_or_two(sender: Sender) -> None:
    sender.open()
    other = Sender(sender.client, sender.store)
    other.open()
    items: list[frames.Item] = []
    for step in range(validation.MAX_ITEMS // 2):
        items += [Event("a.b", step, step), Lost("cap", 1)]
    thread = threading.Thread(target=lambda: sender.post(items, 10, 20))
    thread.start()
    begin = time.monotonic()
    assert 200 == other.post([rows(0, 1)], 10, 20).status_code
    assert time.monotonic() - begin < 2
    thread.join()
    assert 20 == of_stream(sender, "acknowledged")


POISON: dict[str, list[Event | Lost]] = {
    "losses": [Lost("cap", HUGE, HUGE)] * 3,
    "many reasons": [Lost(f"{index}" * 50, 1) for index in range(500)],
    "samples beyond float64": [Event("values.logged", 1, 1, {"samples": 1.7e308})] * 3,
    "samples beyond int64": [Event("values.logged", 1, 1, {"samples": 2**64 - 1})] * 3,
    "samples below zero": [Event("values.logged", 1, 1, {"samples": -1e9})] * 3,
    "many logged names": [Event("values.logged", 1, 1, {f"n{index}": 1.0 for index in range(9000)})],
    "steps at the end of time": [Event("a.b", HUGE, HUGE)],
}


@pytest.mark.parametrize("name", POISON)
def test_numbers_without_measure_break_neither_the_stream_nor_any_page(sender: Sender, name: str) -> None:
    assert 200 == sender.post([sender.hello(), *POISON[name]], 0, 10).status_code
    assert 200 == sender.post([*POISON[name]], 10, 20).status_code
    check_pages_and_numbers(sender)


@pytest.mark.parametrize("value", [3e38, -3e38, float("nan"), float("inf"), float("-inf"), 1e-45])
def test_rows_of_any_value_break_neither_the_stream_nor_any_page(sender: Sender, value: float) -> None:
    schema = Schema(tuple(frames.SCALARS), tuple(frames.STATS), (Tensor("w", (2**61,), "float32"),) * 2)
    assert 200 == sender.post([sender.hello(schema), filled(schema, 0, value)], 0, 10).status_code
    assert 200 == sender.post([filled(schema, 40, value)], 10, 20).status_code
    check_pages_and_numbers(sender)


def test_events_beyond_the_cap_are_judged_and_counted_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_update, "MAX_EVENTS", 5)
    with opened(tmp_path) as place:
        sender = Sender(place.client, place.store)
        events: list[frames.Item] = [Event("scaler.backoff", step, step, {"from": 2.0, "to": 1.0}) for step in range(4)]
        assert 200 == sender.post([sender.hello(), *events], 0, 10).status_code
        assert 200 == sender.post(events, 10, 20).status_code
        assert 200 == sender.post(events, 20, 30).status_code
        told = place.client.get(f"/api/v1/runs/{sender.run}/events").json()["items"]
        run = place.client.get(f"/api/v1/runs/{sender.run}").json()
        assert (5, {"steps": 0, "events": 7}) == (len(told), run["lost"]["events-cap"])
        assert 12 == run["counters"]["backoffs"]
        assert 'limited_total{limit="events"}' in place.client.get("/metrics/self").text


def check_pages_and_numbers(sender: Sender) -> None:
    for path in ("/metrics", "/metrics/self", "/api/v1/runs", f"/api/v1/runs/{sender.run}"):
        assert 200 == sender.client.get(path).status_code, path
    counters = of_stream(sender, "counters")
    assert all(0 <= counters[counter] <= MAX_SUM for counter in SUMS)
    assert len(of_stream(sender, "latest")) <= latest_values.MAX_NAMES
    assert len(of_stream(sender, "lost")) <= MAX_REASONS + 1


def filled(schema: Schema, first: int, value: float) -> Block:
    row = np.full(schema.width, value, "<f4").tobytes()
    return block.pack(block.view(schema, [frames.Steps(step, step, row) for step in range(first, first + 40)]))


@pytest.mark.parametrize("depth", [15, 17, 400, 900, *range(950, 1001, 4), 5000])
def test_data_of_any_depth_are_stored_or_refused(sender: Sender, depth: int) -> None:
    sender.open()
    for nested in (b"\x91" * depth + b"\x90", b"\x81\xa1x" * depth + b"\x80"):
        answer = sender.post_body(body_of(event_with(nested)), of_stream(sender, "acknowledged"), HUGE - 5000 + depth)
        assert answer.status_code in (200, 400, 409, 422), answer.text
    assert 200 == sender.client.get(f"/api/v1/runs/{sender.run}/events").status_code


def test_names_that_are_code_stay_names_in_the_metrics(sender: Sender) -> None:
    said = {"name": BAD, "project": BAD, "host": BAD, "environment": {"torch": BAD * 3000, "device": BAD}}
    schema = Schema(("loss", BAD), (), (Tensor(BAD, (1,), BAD),))
    items: list[frames.Item] = [
        sender.hello(schema, **said),
        Lost(BAD, 1),
        Event(BAD, 0, 0, {BAD: BAD}),
        Event("autocast.entered", 0, 0, {"grad": True, "dtype": BAD}),
    ]
    assert 200 == sender.post(items, 0, 10).status_code
    kind = "application/openmetrics-text; version="
    for accept in ("text/plain", f"{kind}1.0.0; escaping=odd", f"{kind}zzz", f"{kind}1.{'9' * 5000}", ";;==\xff"):
        for path in ("/metrics", "/metrics/self"):
            told = sender.client.get(path, headers={b"Accept": accept.encode("latin-1")})
            assert 200 == told.status_code
    told = sender.client.get("/metrics")
    assert max(map(len, told.text.splitlines())) < 4000
    promtool = subprocess.run([need("promtool"), "check", "metrics"], input=told.content, capture_output=True)
    assert 0 == promtool.returncode, promtool.stderr.decode()


LARGE = "9" * 30


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/{run}/series?names=loss&rank=" + LARGE,
        "/api/v1/runs/{run}/series?names=loss&from=" + LARGE + "&to=" + LARGE,
        "/api/v1/runs/{run}/series?names=loss&stream=%00",
        "/api/v1/runs/{run}/events?from=" + LARGE,
        "/api/v1/runs/{run}/events?rank=" + LARGE,
        "/api/v1/runs/{run}/events?name=%00",
        "/api/v1/runs/{run}/tensors?rank=" + LARGE,
        "/api/v1/runs?project=%00",
        "/api/v1/runs/%00",
        "/api/v1/incidents/%00.x.1",
        "/api/v1/runs?page_token=WzExODA1OTE2MjA3MTc0MTEzMDM0MjQsIngiXQ",
        "/api/v1/runs?page_token=" + "W1tb" * 5000,
        "/api/v1/runs?page_token=%C3%A9",
    ],
)
def test_a_question_that_cannot_be_is_a_problem_of_who_asked(sender: Sender, path: str) -> None:
    sender.open()
    answer = sender.client.get(path.format(run=sender.run))
    assert (422, "application/problem+json") == (answer.status_code, answer.headers["content-type"]), answer.text


def test_names_that_are_sql_find_nothing_and_harm_nothing(sender: Sender) -> None:
    sender.open()
    for name in ("'; drop table runs--", '" or 1=1 --', "%", "demo' or 'a'='a"):
        answer = sender.client.get("/api/v1/runs", params={"project": name})
        assert [] == answer.json()["items"]
    assert 200 == sender.client.get(f"/api/v1/runs/{sender.run}").status_code


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/templates/layout.html",
        "/static//etc/passwd",
        "/static/%00",
        "//etc/passwd",
        "/runbooks/../../../etc/passwd",
        "/runbooks/..%2f..%2fetc%2fpasswd",
        "/api/v1/dashboards/..%2f..%2f..%2fpyproject",
        "/api/v1/dashboards/../../../pyproject.toml",
    ],
)
def test_no_path_leads_out_of_its_folder(place: Place, path: str) -> None:
    assert b" 404 " in asked(place, f"GET {path} HTTP/1.1\r\nHost: localhost").split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1:1", 200), ("", 421)]
)
def test_without_a_token_only_this_machine_s_names_are_answered(place: Place, host: str, status: int) -> None:
    answer = asked(place, f"GET /api/v1/runs HTTP/1.1\r\nHost: {host}")
    assert str(status).encode() == answer.split(b" ")[1]


def asked(place: Place, head: str) -> bytes:
    """The answer to a request that no client would send."""
    port = place.client.base_url.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        answer = b""
        while part := line.recv(65536):
            answer += part
    return answer


def test_a_body_that_trickles_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter_server.http.limits.body.MAX_BODY_SECONDS", 0.2)
    sender = Sender(place.client, place.store)
    head = f"POST /api/v1/runs/{sender.run}/streams/{sender.stream}/frames?offset=0&end=1 HTTP/1.1\r\nHost: localhost"
    answer = asked(place, f"{head}\r\nContent-Type: {frames.CONTENT_TYPE}\r\nContent-Length: 1000")
    assert b" 408 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("path", ["/api/v1/runs?page_size=", "/api/v1/runs?state=", "/no/such/"])
def test_a_long_question_is_not_echoed_at_length(place: Place, path: str) -> None:
    answer = place.client.get(path + 50_000 * "x")
    assert answer.status_code in (404, 422)
    assert len(answer.content) < 2000


def test_a_long_name_is_not_echoed_at_length(sender: Sender) -> None:
    answer = sender.post([Hello("x" * 10**6, "y" * 10**6, SCHEMA)], 0, 10)
    assert 422 == answer.status_code
    assert len(answer.content) < 2000


SCALAR = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
TREE = st.recursive(
    SCALAR | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["hello", "block", "event", "lost", "bye", "x"])
MEMBERS = ("run", "stream", "schema", "data", "config", "name", "step", "time", "reason", "rows")
ITEMS = st.lists(st.fixed_dictionaries({"kind": KINDS}, optional=dict.fromkeys(MEMBERS, TREE)), max_size=3)


@given(st.dictionaries(st.sampled_from(["items", "gaps", "alive", "backlog", "protocol"]), TREE) | TREE)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_decoded_is_a_batch_or_a_problem(tree: Any) -> None:

    try:
        batch = validation.decoded(msgspec.msgpack.encode(tree))
    except Problem as problem:
        found = problem.status in (400, 413, 422)
    else:
        found = isinstance(batch, Batch)
    assert found


@given(ITEMS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_item_that_is_none_is_named_by_its_index(items: list[dict[str, Any]]) -> None:

    try:
        batch = validation.decoded(msgspec.msgpack.encode({"items": items}))
    except Problem as problem:
        found = 0 <= problem.members["item"] < len(items)
    else:
        found = len(items) == len(batch.items)
    assert found


@st.composite
def _packed(draw: st.DrawFn) -> Block:
    """A block whose parts need not fit each other."""
    rows, columns = draw(st.integers(-1, 40)), draw(st.integers(-1, 2 * SCHEMA.width))
    size = draw(st.sampled_from([0, 1, max(rows, 0) * (16 + 4 * max(columns, 0)), 4096]))
    raw = draw(st.binary(min_size=size, max_size=size)) if size < 64 else draw(st.randoms()).randbytes(size)
    data = draw(st.sampled_from([raw, zstandard.ZstdCompressor().compress(raw), raw[::-1]]))
    first = draw(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 50))
    return Block(SCHEMA.id, rows, columns, first, draw(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 90)), data)


@given(_packed())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_block_of_anything_is_rows_of_its_schema_or_a_bad_block(packed: Block) -> None:
    try:
        view = block.unpack(packed, SCHEMA)
    except (block.BadBlock, ValueError, MemoryError):
        return
    assert (packed.rows, SCHEMA.width) == (len(view), view.values.shape[0])
