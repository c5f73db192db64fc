from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter_server.config.settings import SettingsError, from_environment
from tests.e2e.processes import Collector, wait_for
from tests.server.prometheus.test_scrape_process import children

HERE = frozenset(os.sched_getaffinity(0))


def cores(process: int) -> set[frozenset[int]]:
    """Where the threads of a process may be."""
    tasks = [int(task_id) for task_id in os.listdir(f"/proc/{process}/task")]
    return {frozenset(os.sched_getaffinity(task)) for task in tasks}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    collector = Collector(tmp_path).start()
    try:
        yield collector
    finally:
        collector.stop()


def test_all_threads_are_on_one_core_and_the_process_beside_them_is_anywhere(collector: Collector) -> None:
    wait_for(lambda: [1] == [len(core) for core in cores(collector.pid)], "the threads are together", collector.log)
    assert 200 == httpx.get(collector.url + "/metrics", timeout=30).status_code
    (beside,) = children(collector.pid)
    assert {HERE} == cores(beside)
    wait_for(lambda: [1] == [len(core) for core in cores(collector.pid)], "new ones are there too", collector.log)


def test_threads_that_went_apart_come_together_again(tmp_path: Path) -> None:
    often = {"ammeter_server.process.cpu_affinity.PLACEMENT_SECONDS": 1.0}
    collector = Collector(tmp_path, constants=often).start()
    try:
        wait_for(lambda: [1] == [len(core) for core in cores(collector.pid)], "the threads are together", collector.log)
        for task in os.listdir(f"/proc/{collector.pid}/task"):
            os.sched_setaffinity(int(task), HERE)
        wait_for(lambda: [1] == [len(core) for core in cores(collector.pid)], "they are together again")
    finally:
        collector.stop()


def test_it_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_SERVER_CORES", "all")
    collector = Collector(tmp_path).start()
    try:
        assert {HERE} == cores(collector.pid)
    finally:
        collector.stop()


def test_another_word_is_refused() -> None:
    with pytest.raises(SettingsError, match="AMMETER_SERVER_CORES is 'two'; use one or all"):
        from_environment(environment={"AMMETER_SERVER_CORES": "two"})
