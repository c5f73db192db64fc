"""A real collector with two runs, one of which breaks down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.e2e.processes import Collector, wait_for
from tests.server.feeding import BEGIN, Stream, break_down, train

HOUR_NS = 3600 * 10**9


@dataclass
class Fleet:
    """healthy: of 300 steps. broken: healthy for 120 steps, then with NaN gradients in every step."""

    url: str
    healthy: Stream
    broken: Stream


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    collector = Collector(tmp_path_factory.mktemp("collector")).start()
    with httpx.Client(base_url=collector.url, timeout=30) as client:
        healthy, broken = Stream(client, name="fp32"), Stream(client, name="fp16", begin=BEGIN + HOUR_NS)
        train(healthy, 0, 299)
        healthy.bye(299)
        train(broken, 0, 119)
        break_down(broken, 120, 149)
        healthy.send()
        broken.send()
        wait_for(lambda: collector.ask(f"/api/v1/runs/{broken.run}/incidents")["items"], "an incident is opened")
        yield Fleet(collector.url, healthy, broken)
    collector.stop()
