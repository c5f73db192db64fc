"""The program in docs/protocol.md sends a stream to a real collector, as it is printed there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import Collector
from tests.house import tree


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    started = Collector(tmp_path).start()
    yield started
    started.stop()


def program() -> str:
    (found,) = tree.fenced(tree.ROOT / "docs" / "protocol.md", "python")
    return found


def test_the_program_in_the_protocol_page_is_acknowledged_and_its_rows_are_stored(collector: Collector) -> None:
    text = program()
    assert "http://127.0.0.1:8480" in text
    command = [sys.executable, "-c", text.replace("http://127.0.0.1:8480", collector.url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    expected = text.rpartition("# ")[2].strip()
    assert expected == done.stdout.strip(), done.stderr
    (run,) = httpx.get(f"{collector.url}/api/v1/runs").json()["items"]
    series = httpx.get(f"{collector.url}/api/v1/runs/{run['id']}/series", params={"names": "scale"}).json()
    assert [65536.0] * 3 == series["items"][0]["values"]
