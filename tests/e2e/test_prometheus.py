"""A real Prometheus scrapes two replicas in turn. One is killed and started again, what is old is deleted: it sees
one collector."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.wire.frames import Lost
from ammeter_server.config.settings import Settings
from ammeter_server.db import connect, migrations
from ammeter_server.db.step_tables import day_of
from ammeter_server.maintenance.retention import retain
from bench.collector.servers import Server, collector
from tests.alerting import Prometheus
from tests.e2e.processes import wait_for
from tests.server.databases import postgresql
from tests.server.feeding import STEP, Stream, break_down, train

pytestmark = pytest.mark.long

COUNTERS = '{job="ammeter",__name__=~"ammeter_.*(_total|_bucket|_count|_sum)"}'

CONFIG = """
scrape_configs:
  - job_name: ammeter
    scrape_interval: 500ms
    scrape_timeout: 500ms
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Balancer:
    """Gives each request to the next replica, and to the one after it where that does not answer."""

    def __init__(self, replicas: list[Server]) -> None:
        turns = count()
        self.answered = answered = Counter[int]()

        class Turn(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                first = next(turns)
                for place in (first, first + 1):
                    replica = replicas[place % len(replicas)]
                    try:
                        answer = httpx.get(
                            replica.url + self.path, headers={"Accept": self.headers["Accept"]}, timeout=30
                        )
                    except httpx.TransportError:
                        continue
                    answered[replica.port] += 1
                    with suppress(OSError):  # who asked has given up
                        self.send_response(answer.status_code)
                        self.send_header("Content-Type", answer.headers["Content-Type"])
                        self.send_header("Content-Length", str(len(answer.content)))
                        self.end_headers()
                        self.wfile.write(answer.content)
                    return
                self.send_error(502)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Turn)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def database() -> Iterator[str]:
    with postgresql() as url:
        store = connect(url)
        migrations.migrate(store)
        store.close()
        yield url


@pytest.fixture
def replicas(database: str, tmp_path: Path) -> Iterator[list[Server]]:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda name: collector(tmp_path / name, database), "ab"))
        try:
            yield both
        finally:
            list(pool.map(Server.stop, both))


@pytest.fixture
def balancer(replicas: list[Server]) -> Iterator[Balancer]:
    balancer = Balancer(replicas)
    yield balancer
    balancer.stop()


@pytest.fixture
def prometheus(balancer: Balancer, tmp_path: Path) -> Iterator[Prometheus]:
    prometheus = Prometheus(tmp_path / "prometheus", CONFIG.format(port=balancer.port)).start()
    yield prometheus
    prometheus.stop()


def losses(stream: Stream, reason: str) -> list[Lost]:
    """More than are told by themselves."""
    places = range(stream.offset, stream.offset + 12)
    return [Lost(f"{reason} {place % 100}", steps=1, begin=place, end=place + 1) for place in places]


def is_running(client: httpx.Client, run: str) -> bool:
    return bool(client.get(f"/api/v1/runs/{run}").json()["state"] == "running")


def applied(run: str) -> str:
    return f'ammeter_steps_total{{outcome="applied",run="{run}"}}'


def test_counters_never_fall_and_series_end_with_their_runs(
    database: str, tmp_path: Path, replicas: list[Server], balancer: Balancer, prometheus: Prometheus
) -> None:
    with (
        httpx.Client(base_url=replicas[0].url, timeout=30) as a,
        httpx.Client(base_url=replicas[1].url, timeout=30) as b,
    ):
        begin = time.time_ns() - 1000 * STEP
        ahead = Stream(b, rank=1, world_size=2, begin=begin)
        over = Stream(a, begin=time.time_ns() - 10 * 60 * 10**9)
        broken = Stream(a, begin=begin)
        for stream in (ahead, over, broken):
            train(stream, 0, 40)
            stream.send(gaps=losses(stream, "reason"))
            prometheus.wait(applied(stream.run), 41)

        # a rank that comes later and has counted less; a run that ended ten minutes ago, as is said only now
        behind = Stream(a, run=ahead.run, rank=0, world_size=2, begin=begin)
        train(behind, 0, 5)
        behind.send()
        over.bye(40)
        over.send()
        prometheus.wait(applied(over.run), None)
        prometheus.wait(f'ammeter_run_info{{run="{over.run}"}}', 1)
        prometheus.wait('sum(ammeter_fleet_runs_total{outcome="ended"})', 1)

        # one replica dies, and the other one goes on by itself
        wait_for(lambda: balancer.answered[replicas[1].port], "the second replica is scraped")
        replicas[1].process.kill()
        replicas[1].process.wait()
        break_down(broken, 41, 50)
        broken.send(gaps=losses(broken, "another"))
        prometheus.wait(f'ammeter_steps_total{{outcome="skipped",run="{broken.run}"}}', 10)
        prometheus.wait(f'ammeter_incident_active{{run="{broken.run}",verdict="nonfinite-gradient"}}', 1)
        replicas[1] = collector(tmp_path / "b", database)

        # what is over is deleted, and what it counted stays; on a slow machine the others have to say that they are not
        for stream in (ahead, behind, broken):
            stream.client = a
            stream.send()
        for stream in (behind, broken):
            wait_for(partial(is_running, a, stream.run), "a run that is heard of goes on")
        store = connect(database)
        retain(store, Settings(keep_days=1), day_of(time.time_ns()) + 3)
        store.close()
        prometheus.wait(f'ammeter_run_info{{run="{over.run}"}}', None)
        prometheus.wait('sum(ammeter_fleet_runs_total{outcome="ended"})', 1)

        # a rank dies and comes again; then all end
        behind.bye(5, "signal")
        behind.send()
        again = Stream(a, run=ahead.run, rank=0, world_size=2, begin=time.time_ns())
        train(again, 0, 60)
        again.bye(60)
        again.send()
        prometheus.wait(applied(ahead.run), 67)
        for stream, step in ((ahead, 40), (broken, 50)):
            stream.bye(step)
            stream.send()
        prometheus.wait("sum(ammeter_fleet_runs_total)", 3)
        wait_for(lambda: balancer.answered[replicas[1].port], "the second replica is scraped again")

    seen = prometheus.ask(f"{COUNTERS}[1h]")
    assert {over.run, ahead.run, broken.run} <= {series["metric"].get("run") for series in seen}
    values = {json.dumps(series["metric"]): [float(value) for _, value in series["values"]] for series in seen}
    assert {} == {name: several for name, several in values.items() if several != sorted(several)}
    names = {series["metric"]["__name__"] for series in seen}
    assert {"ammeter_fleet_steps_total", "ammeter_incidents_total", "ammeter_grad_norm_bucket"} <= names
    resets = {name: prometheus.ask(f"sum(resets({name}[1h]))")[0]["value"][1] for name in names}
    assert dict.fromkeys(names, "0") == resets
