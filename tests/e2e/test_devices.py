"""From a driver to /metrics, by the real shipper and collector; the driver is a compiled stand-in for NVIDIA's."""

from __future__ import annotations

import os
import signal
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from ammeter import journal
from ammeter.environment import identity
from ammeter.journal import Journal
from ammeter.report import diagnosis
from ammeter.shipper import process as ship
from ammeter.wire.frames import Bye, Hello, Schema, Steps
from ammeter_server.db import Store, connect
from ammeter_server.db.tables import streams
from tests.agent.fake_nvml import UUIDS, FakeNvml
from tests.server.feeding import serving, wait_until
from tests.server.ops.test_metrics import scrape


class Rank:
    """A rank that trains on the first device, as its journal has it; a shipper runs beside it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.run = str(uuid.uuid4())
        self.folder = folder / self.run
        self.folder.mkdir()
        self._url = url
        self._journal = Journal(self.folder / uuid.uuid4().hex)
        self._journal.hello(
            Hello(
                run=self.run,
                stream=self._journal.folder.name,
                schema=Schema(("loss",)),
                host=identity.host(),
                pid=os.getpid(),
                started=time.time_ns(),
                environment={"device": "NVIDIA H200", "device_uuid": UUIDS[0]},
            )
        )
        self._use = journal.DeviceUse(self._journal.folder)
        self._step = 0
        self.step()
        self.ship()

    def ship(self) -> None:
        assert ship.start(self.folder, self._url) is None

    def step(self) -> None:
        self._journal.append(Steps(self._step, time.time_ns(), struct.pack("<f", 1.0)))
        self._step += 1

    def shipper(self) -> int | None:
        return journal.lock_owner(self.folder / f"shipper.{identity.host()}.lock")

    def utilization(self) -> float | None:
        """What the shipper has told this process since the last call."""
        return self._use.poll()

    def end(self) -> None:
        self._journal.append(Bye("closed", self._step, time.time_ns()))
        self._journal.close()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return FakeNvml(tmp_path)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


@pytest.fixture
def rank(tmp_path: Path, library: FakeNvml, client: httpx.Client) -> Iterator[Rank]:
    rank = Rank(tmp_path, str(client.base_url))
    yield rank
    rank.end()
    if (shipper := rank.shipper()) is not None:
        os.kill(shipper, signal.SIGKILL)
        wait_until(lambda: rank.shipper() is None)


@pytest.fixture
def store(tmp_path: Path, client: httpx.Client) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
    yield store
    store.close()


def hosts(store: Store) -> list[Any]:
    """The streams of hosts, the oldest first."""
    with store.reading() as connection:
        query = select(streams).where(streams.c.role == "host").order_by(streams.c.started)
        return list(connection.execute(query))


def test_what_a_driver_says_of_a_ranks_device_is_on_metrics_until_the_rank_ends(
    rank: Rank, client: httpx.Client, store: Store
) -> None:
    host = identity.host()
    labels = f'UUID="{UUIDS[0]}",device="nvidia0",gpu="0",hostname="{host}",run="{rank.run}"'
    wait_until(lambda: client.get(f"/api/v1/runs/{rank.run}").json().get("devices"))
    shown = scrape(client)
    assert 0.75 == shown[f"ammeter_device_utilization_ratio{{{labels}}}"]
    assert 512 == shown[f"ammeter_device_power_watts{{{labels}}}"]
    assert 61 == shown[f"ammeter_device_temperature_celsius{{{labels}}}"]
    assert 2.0**36 == shown[f'ammeter_device_memory_bytes{{kind="used",run="{rank.run}"}}']
    rank.end()
    wait_until(lambda: [host.bye_reason for host in hosts(store)] == ["closed"])
    wait_until(lambda: client.get(f"/api/v1/runs/{rank.run}").json()["state"] == "ended")
    wait_until(lambda: rank.shipper() is None)
    assert [] == client.get(f"/api/v1/runs/{rank.run}/incidents").json()["items"]
    report = diagnosis.diagnose(rank.folder)
    assert ([], [True, False]) == (report.findings, sorted((stream.is_rank for stream in report.streams), reverse=True))
    assert 1 == report.as_json()["run"]["world_size"]


def test_a_shipper_that_is_killed_ends_its_stream_and_the_next_one_begins_another(
    rank: Rank, client: httpx.Client, store: Store
) -> None:
    wait_until(lambda: [host.rows for host in hosts(store)] == [1])
    first = rank.shipper()
    assert first
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: rank.shipper() is None)
    rank.ship()
    wait_until(lambda: [(host.bye_reason, host.rows) for host in hosts(store)] == [("lost", 1), (None, 1)])
    rank.step()
    rank.end()
    wait_until(lambda: [host.bye_reason for host in hosts(store)] == ["lost", "closed"])
    for host in hosts(store):
        kept = [entry.frame for entry in journal.read(rank.folder / host.id)]
        assert (host.rows, journal.end_of(rank.folder / host.id)) == (
            sum(isinstance(frame, Steps) for frame in kept),
            host.acknowledged,
        )
    wait_until(lambda: client.get(f"/api/v1/runs/{rank.run}").json()["state"] == "ended")
    assert [] == client.get(f"/api/v1/runs/{rank.run}/incidents").json()["items"]


def test_a_driver_that_hangs_holds_up_no_step(rank: Rank, library: FakeNvml, client: httpx.Client) -> None:
    library.set(utilization="hang")
    rank.step()
    wait_until(lambda: (rank.folder / ship.LOG_NAME).exists())
    for _ in range(3):
        rank.step()
    run = f"/api/v1/runs/{rank.run}"
    wait_until(lambda: client.get(run).json().get("last_step") == 4)
    assert [] == client.get(run).json()["devices"]
    rank.end()
    wait_until(lambda: client.get(run).json()["state"] == "ended")
    wait_until(lambda: rank.shipper() is None)


def test_a_rank_is_told_the_utilization_of_its_device(rank: Rank) -> None:
    wait_until(lambda: rank.utilization() == 0.75)
