"""HAProxy with the shipped configuration, in front of three collectors on one PostgreSQL, of which two are killed."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.db import tables
from ammeter_server.db.queries import outbox
from tests.agent.stream_builder import Stream
from tests.alerting import replaced
from tests.e2e import stored
from tests.e2e.processes import Collector, Receiver, free_port, wait_for
from tests.e2e.recorded_streams import (
    RecordedStream,
    Sender,
    all_at_once,
    breaks,
    collector_client,
    holds_what_was_sent,
    overflows,
    trains,
    written,
)
from tests.parts import need
from tests.server.databases import postgresql

pytestmark = pytest.mark.long

CONFIGURATION = Path(__file__).parent.parent.parent / "deploy" / "haproxy.cfg"
HOW = "balance uri\n    hash-type consistent"
RUNS: dict[Callable[[int], Stream], int] = {overflows: 8, breaks: 2, trains: 1}
PAGES = "nonfinite-loss"
"""The verdict of severity page on the run that breaks, near the end of its streams."""

BATCHES_PER_STREAM = 60
KILLED_AFTER = 200
"""Acknowledged batches, of 660: no stream has reached its fault."""

SHORT_LEASE = {"ammeter_server.judging.judge.LEASE_NS": 5 * 10**9}
"""A run that a killed collector was judging is judged by another one after this."""

PATIENCE = 100.0
TOKEN = "t" * 32


@dataclass
class Cluster:
    """Collectors behind a proxy, and what they notify."""

    url: str
    collectors: list[Collector]
    receiver: Receiver

    def ask(self, path: str) -> Any:
        """JSON of the read API, through the proxy."""
        answer = httpx.get(self.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def busiest(self) -> Collector:
        """The collector that has answered most batches."""
        return max(self.collectors, key=batches)

    def kill(self, collector: Collector) -> None:
        """kill -9. It does not come back."""
        self.collectors.remove(collector)
        collector.kill()

    def log(self) -> str:
        return "".join(collector.log() for collector in self.collectors)

    def pages(self, run: str) -> list[dict[str, Any]]:
        """The notifications on the verdict of the run that have arrived."""
        received = [(body, body["title"] + body["message"]) for _, body in self.receiver.received]
        return [body for body, text in received if PAGES in text and run in text]

    def nothing_is_pending(self) -> bool:
        with stored.opened(self.collectors[0].database_url) as database:
            return outbox.pending(database) == 0


@pytest.fixture(params=[HOW, "balance roundrobin"], ids=["uri", "roundrobin"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("AMMETER_SERVER_TOKEN_FILE", str(token))
    monkeypatch.setenv("AMMETER_SERVER_TRUSTED_PROXIES", "127.0.0.1")
    with ExitStack() as stack:
        haproxy = need("haproxy", "/usr/sbin/haproxy")
        database = stack.enter_context(postgresql())
        receiver = Receiver()
        stack.callback(receiver.stop)
        collectors = []
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            words = ("--notify", receiver.apprise)
            collectors.append(Collector(folder, *words, token=TOKEN, database_url=database, constants=SHORT_LEASE))
            stack.callback(collectors[-1].stop)
        all_at_once([collector.start for collector in collectors])
        url = stack.enter_context(balanced(haproxy, tmp_path, collectors, request.param))
        yield Cluster(url, collectors, receiver)


@contextmanager
def balanced(haproxy: str, folder: Path, collectors: Sequence[Collector], how: str) -> Iterator[str]:
    """Runs HAProxy with the shipped configuration, but for the addresses and how it chooses. Yields its URL."""
    url = f"http://127.0.0.1:{free_port()}"
    other = {f"127.0.0.1:{8481 + place}": f"127.0.0.1:{collector.port}" for place, collector in enumerate(collectors)}
    file = folder / "haproxy.cfg"
    file.write_text(replaced(CONFIGURATION.read_text(), {"127.0.0.1:8400": url[7:], HOW: how, **other}))
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([haproxy, "-db", "-f", str(file)], stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(url), "HAProxy has a collector", (folder / "haproxy.log").read_text)
        yield url
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def batches(collector: Collector) -> float:
    """The number of batches that a collector has answered."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    text = httpx.get(f"{collector.url}/metrics/self", headers=headers, timeout=30).text
    lines = [line for line in text.splitlines() if line.startswith("ammeter_collector_ingest_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedStream]:
    return written(tmp_path_factory.mktemp("journals"), RUNS)


def test_with_two_of_three_collectors_killed_every_step_is_stored_once_and_one_page_goes_out(
    cluster: Cluster, recorded: list[RecordedStream]
) -> None:
    broken = recorded[RUNS[overflows]].run
    senders = [Sender(stream, collector_client(cluster.url, TOKEN), BATCHES_PER_STREAM) for stream in recorded]
    all_at_once([lambda: kill_in_the_middle(cluster, senders), *(sender.send_all for sender in senders)])
    runs = {stream.run for stream in recorded}
    wait_for(
        lambda: all(cluster.ask(f"/api/v1/runs/{run}")["state"] == "ended" for run in runs),
        "every run has ended",
        cluster.log,
        PATIENCE,
    )
    wait_for(lambda: cluster.pages(broken), "the page has arrived", cluster.log, PATIENCE)
    wait_for(lambda: cluster.nothing_is_pending(), "every notification is delivered", cluster.log, PATIENCE)
    before = list(cluster.receiver.received)
    cluster.kill(cluster.busiest())

    with stored.opened(cluster.collectors[0].database_url) as database:
        for stream in recorded:
            holds_what_was_sent(database, stream)
        opened = Counter(
            (incident.run, incident.verdict)
            for run in runs
            for incident in stored.table(database, tables.incidents, run)
        )
    assert opened[broken, PAGES] == 1
    assert max(opened.values()) == 1
    for sender in senders:  # as a shipper does that lost all its acknowledgements
        sender.send_all()
    assert cluster.ask(f"/api/v1/runs/{broken}")["state"] == "ended"
    shown = cluster.ask(f"/api/v1/runs/{broken}/incidents")["items"]
    assert [incident["verdict"] for incident in shown].count(PAGES) == 1
    curve = cluster.ask(f"/api/v1/runs/{broken}/series?names=loss&rank=0")
    assert curve["items"]
    assert httpx.get(f"{cluster.url}/runs/{broken}", timeout=30, follow_redirects=True).status_code == 200
    assert cluster.receiver.received == before
    assert len(cluster.pages(broken)) == 1


def kill_in_the_middle(cluster: Cluster, senders: Sequence[Sender]) -> None:
    wait_for(lambda: sum(sender.taken for sender in senders) >= KILLED_AFTER, "enough is taken", cluster.log, PATIENCE)
    assert not all(sender.offset == sender.recorded.end for sender in senders)
    busiest = cluster.busiest()
    assert batches(busiest) > 0
    cluster.kill(busiest)
