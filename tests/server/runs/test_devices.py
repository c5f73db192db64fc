from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from ammeter_server.db import connect
from ammeter_server.db.tables import findings
from ammeter_server.judging.silent_streams import SILENCE_NS, tick
from ammeter_server.prometheus.samples import MAX_DEVICES
from tests.server.feeding import STEP, Stream, serving, train, wait_until
from tests.server.hosts import BUSY, Host
from tests.server.ops.test_metrics import scrape


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def training(client: httpx.Client, world_size: int = 1) -> Stream:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP, world_size=world_size)
    train(stream, 0, 20)
    stream.send()
    return stream


def told(client: httpx.Client, stream: Stream) -> dict[str, Any]:
    run: dict[str, Any] = client.get(f"/api/v1/runs/{stream.run}").json()
    return run


def test_a_device_is_told_with_the_labels_of_dcgm_exporter(client: httpx.Client) -> None:
    rank = training(client)
    host = Host(client, run=rank.run)
    host.read(1)
    host.send()
    shown = scrape(client)
    labels = f'UUID="GPU-node-1-0",device="nvidia0",gpu="0",hostname="node-1",run="{rank.run}"'
    assert 0.75 == shown[f"ammeter_device_utilization_ratio{{{labels}}}"]
    assert 500 == shown[f"ammeter_device_power_watts{{{labels}}}"]
    assert 60 == shown[f"ammeter_device_temperature_celsius{{{labels}}}"]
    assert 2.0**36 == shown[f'ammeter_device_memory_bytes{{kind="used",run="{rank.run}"}}']
    ours = {"host": "node-1", "gpu": "0", "uuid": "GPU-node-1-0", "model": "NVIDIA H200"}
    assert [ours | BUSY] == told(client, rank)["devices"]


def test_what_cannot_be_read_any_more_is_not_told_any_more(client: httpx.Client) -> None:
    rank = training(client)
    host = Host(client, run=rank.run)
    host.read(1)
    host.read(2, {"power_watts": math.nan})
    host.send()
    names = {name.partition("{")[0] for name in scrape(client)}
    assert "ammeter_device_power_watts" not in names
    assert "ammeter_device_utilization_ratio" in names
    host.bye(3)
    host.send()
    assert "ammeter_device_utilization_ratio" not in {name.partition("{")[0] for name in scrape(client)}
    assert [] == told(client, rank)["devices"]


def test_of_two_lives_of_a_hosts_shipper_the_newer_counts(client: httpx.Client) -> None:
    rank = training(client)
    before = Host(client, run=rank.run)
    before.read(1)
    before.send()
    after = Host(client, run=rank.run, begin=before.begin + 1)
    after.read(1, BUSY | {"utilization": 0.25})
    after.send()
    assert [0.25] == [device["utilization"] for device in told(client, rank)["devices"]]


def test_of_many_devices_each_host_is_told_as_one(client: httpx.Client) -> None:
    rank = training(client)
    for number in range(MAX_DEVICES + 2):
        host = Host(client, run=rank.run, host=f"node-{number}", gpus=8)
        host.read(1)
        host.send()
    power = {name: value for name, value in scrape(client).items() if name.startswith("ammeter_device_power_watts")}
    labels = [f'UUID="",device="all",gpu="all",hostname="node-{number}"' for number in range(MAX_DEVICES)]
    assert {f'ammeter_device_power_watts{{{label},run="{rank.run}"}}': 500 for label in labels} == power


def test_a_hosts_stream_is_no_rank(client: httpx.Client) -> None:
    rank = training(client, world_size=2)
    other = Stream(client, run=rank.run, rank=1, world_size=2, begin=rank.begin)
    train(other, 0, 20)
    other.send()
    host = Host(client, run=rank.run, world_size=2)
    host.read(400)
    host.send()
    run = told(client, rank)
    assert (2, 2, 20, 21) == (run["world_size"], run["ranks_reporting"], run["last_step"], run["counters"]["steps"])
    assert not [name for name in run["latest"] if name.startswith("utilization")]
    for stream in (rank, other):
        stream.bye(20)
        stream.send()
    wait_until(lambda: told(client, rank)["state"] == "ended")


def test_a_host_that_falls_silent_is_no_incident(client: httpx.Client, tmp_path: Path) -> None:
    rank = training(client)
    host = Host(client, run=rank.run)
    host.read(1)
    host.send()
    store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
    later = time.time_ns() + 20 * SILENCE_NS
    tick(store, later, 0)
    with store.reading() as connection:
        stored = [(row.stream, row.verdict) for row in connection.execute(select(findings))]
    store.close()
    assert [(rank.stream, "run-lost")] == stored
