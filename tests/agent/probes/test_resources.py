from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.probes import resources
from ammeter.probes.resources import batch, device_memory, memory, reading_interval
from ammeter.recording.schedule.bucket import Bucket
from ammeter.recording.schedule.budget import Governor
from ammeter.wire.columns import View, measured
from tests.agent.training import Recipe, events, stream, train


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 50)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None, scale: Any = None) -> torch.Tensor:
        found: torch.Tensor = self.head(self.table(ids))
        return found


def _rows(folder: Path, model: torch.nn.Module, step: Callable[[torch.nn.Module, int, ammeter.Run], Any]) -> View:
    """The rows of four steps; step returns what backward() is called on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = ammeter.watch(model, optimizer, dir=folder)
    for at in range(4):
        optimizer.zero_grad()
        step(model, at, run)
        optimizer.step()
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows


def test_samples_and_tokens_of_all_micro_batches_are_counted(tmp_path: Path) -> None:
    def step(model: torch.nn.Module, at: int, run: ammeter.Run) -> None:
        for _micro in range(at + 1):
            ids = torch.randint(50, (3, 7))
            model(ids, labels=ids).sum().backward()

    rows = _rows(tmp_path, Words(), step)
    assert [3.0, 6.0, 9.0, 12.0] == rows.scalar("samples").tolist()
    assert [21.0, 42.0, 63.0, 84.0] == rows.scalar("tokens").tolist()


def test_an_evaluation_is_not_counted(tmp_path: Path) -> None:
    def step(model: torch.nn.Module, _: int, __: ammeter.Run) -> None:
        with torch.no_grad():
            model(torch.randn(100, 5))
        model.eval()
        model(torch.randn(100, 5))
        model.train()
        model(torch.randn(6, 5)).sum().backward()

    rows = _rows(tmp_path, torch.nn.Linear(5, 2), step)
    assert [6.0] * 4 == rows.scalar("samples").tolist()
    assert not measured(rows.scalar("tokens")).any()


def test_what_the_program_says_of_its_samples_stands_alone(tmp_path: Path) -> None:
    def step(model: torch.nn.Module, at: int, run: ammeter.Run) -> None:
        model(torch.randn(6, 5)).sum().backward()
        if at % 2 == 0:
            run.log(samples=1000)

    said = _rows(tmp_path, torch.nn.Linear(5, 2), step).scalar("samples")
    assert [True, False, True, False] == measured(said).tolist()
    assert {1000.0} == set(said[measured(said)].tolist())


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((torch.ones(4, 3, 8, 8),), {}, (4, 0)),
        ((torch.ones(4, 3, 8, 8), torch.arange(4)), {}, (4, 0)),
        ((torch.ones(4, 9, dtype=torch.int64), torch.ones(4, 9, dtype=torch.int64)), {}, (4, 36)),
        ((), {"input_ids": torch.ones(2, 5, dtype=torch.int32), "mask": torch.ones(2, 5, dtype=torch.int64)}, (2, 10)),
        (({"input_ids": torch.ones(2, 5, dtype=torch.int64)},), {}, (2, 10)),
        (([torch.ones(3, 2)],), {}, (3, 0)),
        ((torch.arange(77),), {}, (0, 77)),
        ((torch.ones(4, 3, 8, 8, dtype=torch.uint8),), {}, (4, 0)),
        ((torch.ones(()), "text", None, 3), {}, (0, 0)),
        ((), {}, (0, 0)),
    ],
)
def test_the_size_of_a_batch_is_read_from_a_models_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert expected == batch(args, kwargs)


def test_the_resident_memory_is_that_of_the_process() -> None:
    pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    found = memory([torch.device("cpu")])
    assert ["host_rss_bytes"] == list(found)
    assert pages * os.sysconf("SC_PAGE_SIZE") == pytest.approx(found["host_rss_bytes"], rel=0.05)


def test_memory_is_read_at_most_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def read(devices: Any) -> dict[str, float]:
        calls.append(1)
        return {"host_rss_bytes": 4096.0}

    monkeypatch.setattr(resources, "memory", read)
    rows = stream(train(Recipe(steps=60), watched=True, dir=tmp_path).run, tmp_path)[0]
    took = float((rows.times[-1] - rows.times[0]) / 1e9)
    assert 1 <= len(calls) <= 1 + took
    assert 4096.0 == rows.scalar("host_rss_bytes")[0]
    assert len(calls) == measured(rows.scalar("host_rss_bytes")).sum()


def test_memory_of_several_devices_is_added_up() -> None:
    one = {"allocated_bytes.all.peak": 70, "reserved_bytes.all.current": 100, "num_alloc_retries": 1}
    two = {"allocated_bytes.all.peak": 5, "reserved_bytes.all.current": 10, "num_alloc_retries": 0}
    expected = {"device_allocated_bytes": 75.0, "device_reserved_bytes": 110.0, "device_alloc_retries": 1.0}
    assert expected == device_memory([one, two])
    assert dict.fromkeys(expected, 0.0) == device_memory([{}])


def test_the_schedule_is_what_the_budget_pays_for() -> None:
    bucket = Bucket(0.004)
    assert reading_interval(bucket, 0.1) is None
    bucket.spend(0.002)
    assert 5.0 == pytest.approx(reading_interval(bucket, 0.1))
    assert 1.0 == reading_interval(bucket, 10.0)
    for share in (0.0, float("inf")):
        unbounded = Bucket(share)
        unbounded.spend(0.002)
        assert reading_interval(unbounded, 0.1) is None


def test_the_schedule_is_written_where_it_changes(tmp_path: Path) -> None:
    rows = stream(train(Recipe(steps=200), watched=True, dir=tmp_path).run, tmp_path)[0]
    for name in ("norms_every", "full_every"):
        told = rows.scalar(name)[measured(rows.scalar(name))]
        assert 1 <= len(told) < 200
        assert (told >= 1).all()
        assert (np.abs(np.diff(told)) > 0.09 * told[:-1]).all()
    light = stream(train(Recipe(steps=5), watched=True, dir=tmp_path, preset="light").run, tmp_path)[0]
    assert not measured(light.scalar("full_every")).any()


def test_the_schedule_is_no_longer_than_the_guaranteed_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Governor, "_guarantee", lambda self: setattr(self.norm_schedule, "interval", 7))
    monkeypatch.setattr(resources, "SCHEDULE_NS", 0)
    rows = stream(train(Recipe(steps=200), watched=True, dir=tmp_path, budget=1e-4).run, tmp_path)[0]
    written = rows.scalar("norms_every")[measured(rows.scalar("norms_every"))]
    assert 7.0 == written[-1]


def test_reading_opens_no_thread_and_leaves_no_file_open(tmp_path: Path) -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(50):
        memory([])
    assert (before, threads) == (len(os.listdir("/proc/self/fd")), threading.active_count())
