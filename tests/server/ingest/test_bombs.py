"""A batch that decodes to more than its limits is refused before it takes memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import zstandard

from ammeter.wire import frames
from ammeter.wire.frames import Block, Event, Lost
from ammeter_server.ingest import validation
from tests.server.ingest.bodies import body_of, event_with, hello_with, many
from tests.server.ingest.senders import SCHEMA, Sender, of_stream, rows, stored

FULL = 16 * 2**20 - 1000


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
    assert longest() < 1.0, "CPU seconds"
    assert [] == stored(sender, "runs")["runs"]


class Waits:
    """Asks for /livez all the time; returns the longest CPU time of the process, collector included, in one request.

    The decoding of a body on the collector's event loop would be part of it. Wall-clock time also has that of other
    programs on this machine.
    """

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
                begin = time.process_time()
                assert 200 == client.get("/livez").status_code
                self.longest = max(self.longest, time.process_time() - begin)


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
