"""A small fleet: real trainings of all kinds, a real collector and a real Prometheus."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.wire.frames import Lost
from tests import forked
from tests.e2e.processes import Collector, free_port, wait_for
from tests.parts import need
from tests.server.feeding import STEP, Stream, train
from tests.server.hosts import Host

CONFIG = """
scrape_configs:
  - job_name: ammeter
    scrape_interval: 1s
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
  - job_name: ammeter-collector
    scrape_interval: 1s
    metrics_path: /metrics/self
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

PROGRAM = """
import contextlib, json, sys, time
import torch, ammeter

kind, name, steps, pause, tags = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), json.loads(sys.argv[5])
dtype = {"float32": None, "bfloat16": torch.bfloat16}.get(kind, torch.float16)
autocast = lambda on=True: torch.autocast("cpu", dtype=dtype, enabled=on) if dtype else contextlib.nullcontext()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        self.head = torch.nn.Linear(64, 8)

    def forward(self, rows):
        hidden = torch.nn.functional.gelu(self.body(rows))
        with autocast(False):
            return self.head(hidden.float())

torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=40) if dtype is torch.float16 else None
parts = [model, optimizer, *([scaler] if scaler else [])]
run = ammeter.watch(*parts, name=name, project="vision", config={"lr": 1e-3, "precision": kind}, tags=tags)
print(run.id, flush=True)
truth = torch.randn(32, 8)
for step in range(steps):
    rows = torch.randn(16, 32)
    optimizer.zero_grad()
    with autocast():
        made = model(rows)
        loss = (made - rows @ truth / 6).square().mean()
    if kind == "nan" and step > 30:
        loss = loss * float("nan")
    if kind == "float16" and step % 50 == 20:
        made.register_hook(lambda gradient: gradient * 1e8)
    if scaler:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
    run.log(samples=16, epoch=step / 50)
    if step % 10 == 9:
        run.log(val_loss=float(loss.detach().float()))
    if step % 40 == 39:
        whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(whole | ({"scaler": scaler.state_dict()} if scaler else {}), f"{name}.pt")
    if kind == "raises" and step == 60:
        raise RuntimeError("the data loader died")
    time.sleep(pause)
run.close()
"""
"""Training program.

Arguments: kind, name, steps, pause between steps, tags. Part of its work stays in float32.
"""

ENDLESS = 10**6


class Prometheus:
    """A real Prometheus that scrapes both addresses of a collector every second."""

    def __init__(self, folder: Path, scraped: int) -> None:
        folder.mkdir()
        (folder / "prometheus.yml").write_text(CONFIG.format(port=scraped))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._log = folder / "log"
        with self._log.open("wb") as log:
            command = [need("prometheus"), *words, f"--web.listen-address=127.0.0.1:{port}"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def ask(self, query: str, moment: float | None = None) -> list[Any]:
        """Returns the result of a query now or at a moment; nothing while Prometheus starts."""
        return self._asked("query", query=query, **({} if moment is None else {"time": moment}))

    def course(self, query: str, begin: float, end: float, step: float) -> list[Any]:
        """Returns the results of a query at every step from begin to end."""
        return self._asked("query_range", query=query, start=begin, end=end, step=step)

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)

    def _asked(self, path: str, **words: Any) -> list[Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}") as answer:
                return list(json.load(answer)["data"]["result"])
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []
            raise AssertionError(f"{words['query']}: {error.read().decode()}") from error
        except OSError:
            return []


class Training:
    """A training process that runs until it is stopped or its steps are done."""

    def __init__(self, folder: Path, url: str, kind: str, name: str, steps: int, tags: Mapping[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        settings = {"AMMETER_DIR": str(folder / "runs"), "AMMETER_URL": url, "AMMETER_BUDGET": "0.05"}
        words = [sys.executable, "program.py", kind, name, str(steps), "0.02", json.dumps(tags)]
        with self._log.open("w") as errors:
            self.process = forked.Popen(
                words,
                cwd=folder,
                env={**os.environ, **settings, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @cached_property
    def run(self) -> str:
        """The run id, available once the run has begun."""
        assert self.process.stdout is not None
        run: str = self.process.stdout.readline().strip()
        assert run, f"ended with {self.process.wait(20)} before it began: {self._log.read_text()}"
        return run

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(20)


@dataclass
class Fleet:
    """Trainings, their collector, and the Prometheus that scrapes it. pairs: a run and its baseline."""

    folder: Path
    collector: Collector
    prometheus: Prometheus
    trainings: list[Training] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    recorded: Recorded | None = None
    began: float = field(default_factory=time.time)

    def train(self, kind: str, name: str, steps: int = ENDLESS, **tags: str) -> Training:
        self.trainings.append(Training(self.folder, self.collector.url, kind, name, steps, tags))
        return self.trainings[-1]

    def until_scraped(self, project: str) -> None:
        """Waits until Prometheus has numbers of the project."""
        query = f'ammeter_fleet_runs_total{{project="{project}"}}'
        wait_for(lambda: self.prometheus.ask(query), "the project is scraped", self._explain, seconds=180)

    def _explain(self) -> str:
        """What the processes wrote, and which runs the collector knows."""
        runs = [(run["name"], run["state"], run["last_step"]) for run in self.collector.ask("/api/v1/runs")["items"]]
        logs = [self.collector.log(), self.prometheus.log(), *(training.log() for training in self.trainings)]
        return "\n".join([str(runs), *logs])

    def stop(self) -> None:
        """Ends the trainings, and waits until their shippers have delivered everything."""
        if self.recorded:
            self.recorded.stop()
        runs = {training.run for training in self.trainings}
        for training in self.trainings:
            training.stop()
        wait_for(lambda: not runs & self._alive(), "all trainings are over", self.collector.log)

    def _alive(self) -> set[str]:
        return {run["id"] for run in self.collector.ask("/api/v1/runs?state=running")["items"]}


class Recorded:
    """Sends data that no CPU run produces.

    A run with half the memory of its baseline, the host of both, and a gap. New data is sent every second.
    """

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=30)
        begin = time.time_ns() - 60 * STEP
        self._base = Stream(self._client, project="speech", begin=begin)
        self._half = Stream(self._client, project="speech", begin=begin, tags={"baseline": self._base.run})
        self._host = Host(self._client, run=self._half.run, project="speech", host="node-7", gpus=2)
        self.pair = (self._half.run, self._base.run)
        self._over = threading.Event()
        for last in range(9, 60, 10):
            _ten(self._base, last, 60e9)
            self._tell(last)
        self._base.bye(59)
        self._base.send()
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def _go_on(self) -> None:
        for last in itertools.count(69, 10):
            if self._over.wait(1):
                return
            self._tell(last, Lost("journal-cap", steps=3, begin=self._half.offset, end=self._half.offset + 1))

    def _tell(self, last: int, *gaps: Lost) -> None:
        _ten(self._half, last, 41e9)
        self._half.send(gaps=list(gaps))
        self._host.read(last)
        self._host.send()


def _ten(stream: Stream, last: int, allocated: float) -> None:
    """Sends ten steps, the last of which includes a memory reading."""
    train(stream, last - 9, last - 1)
    stream.tell(last, {"loss": 1.2, "applied": 1.0, "step_seconds": 0.1, "device_allocated_bytes": allocated})


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Starts a collector with prices and a Prometheus, without any run."""
    (folder / "server").mkdir()
    (folder / "program.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AMMETER_SERVER_COST_PER_HOUR", "*=4.10")
        collector = Collector(folder / "server").start()
    try:
        prometheus = Prometheus(folder / "prometheus", collector.port)
        started = Fleet(folder, collector, prometheus)
        try:
            yield started
        finally:
            prometheus.stop()
            started.stop()
    finally:
        collector.stop()


def busy(fleet: Fleet) -> None:
    """Starts one run of each kind.

    float32, float16 compared with it, bfloat16 that ends, one full of NaN, one that raises, and a recorded pair from
    GPUs.
    """
    fleet.train("nan", "nan")
    # Counters start at 0 in Prometheus: a run that ends before the first scrape of its project increases nothing.
    fleet.until_scraped("vision")
    base = fleet.train("float32", "float32", 150)
    assert base.run  # a baseline begins before the runs that are compared with it
    half = fleet.train("float16", "float16", baseline="float32")
    fleet.train("bfloat16", "bfloat16", 150, baseline="float32", expected_hours="1")
    fleet.train("raises", "raises", 100)
    fleet.recorded = Recorded(fleet.collector.url)
    fleet.pairs = [(half.run, base.run), fleet.recorded.pair]
