"""kill -9 loses no completed step of a program with steps of a few milliseconds, and a hang shows its last one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ammeter_server.db import tables
from tests import forked
from tests.agent.shipper.processes import lock_owner, ship_once
from tests.e2e import stored
from tests.e2e.processes import Collector, wait_for

KILLS = 6
MAX_STEPS = 900
"""Steps after which a program is killed even if it does not use the fast path."""

HANGS_AFTER = 300

HANG_SECONDS = 5.0
"""Longest time after which the last step of a hanging program is at the collector: 2 s on an idle machine."""

PROGRAM = """
import os, sys, time
import torch
import ammeter
from ammeter.recording.schedule.attention import Attention
from ammeter.recording.schedule.budget import Governor

Attention._interval = lambda self, seconds: 10**6  # all but the first steps use the fast path, however long they take
Governor.due = lambda self, step: False

with_scaler, hangs_after = sys.argv[1] == "scaler", int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=with_scaler)
run = ammeter.watch(model, optimizer, scaler if with_scaler else None)
x, y = torch.randn(64, 64), torch.randn(64, 1)
step = 0
while True:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16 if with_scaler else torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    os.write(1, b"%d %d\\n" % (step, run._session.fast_path.active))
    if step == hangs_after:
        time.sleep(600)
    step += 1
"""


@dataclass
class Program:
    """A program that trains until it is killed, and the lines that it writes after each step."""

    process: subprocess.Popen[str]
    rank: int
    lines: list[str] = field(default_factory=list)

    def follow(self, fast_steps: int, max_steps: int = MAX_STEPS) -> None:
        """Waits for so many steps on the fast path, or for max_steps."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            fast_steps -= self.used_fast_path
            if fast_steps <= 0 or self.last_step >= max_steps:
                return
        raise AssertionError(f"the program of rank {self.rank} has ended after {len(self.lines)} steps")

    def kill(self) -> None:
        self.process.kill()
        out, _ = self.process.communicate()
        self.lines += out.splitlines()

    @property
    def last_step(self) -> int:
        return int(self.lines[-1].split()[0])

    @property
    def used_fast_path(self) -> bool:
        return self.lines[-1].split()[1] == "1"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    collector = Collector(tmp_path_factory.mktemp("collector")).start()
    yield collector
    collector.stop()


@dataclass
class Job:
    """Programs that are the ranks of one run."""

    folder: Path
    url: str
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    programs: list[Program] = field(default_factory=list)

    def start(self, count: int, *, hangs_after: int = -1) -> None:
        script = self.folder / "script.py"
        script.write_text(PROGRAM)
        environment = {"AMMETER_DIR": str(self.folder), "AMMETER_URL": self.url, "AMMETER_RUN_ID": self.run}
        environment |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        for rank in range(count):
            process = forked.Popen(
                [sys.executable, str(script), "scaler" if rank % 2 else "none", str(hangs_after)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            self.programs.append(Program(process, rank))

    @property
    def shipper(self) -> int:
        (lock,) = (self.folder / self.run).glob("shipper.*.lock")
        return lock_owner(lock)

    def end(self) -> None:
        for program in self.programs:
            if program.process.poll() is None:
                program.kill()
        with contextlib.suppress(ValueError, ProcessLookupError):
            if self.shipper:
                os.kill(self.shipper, signal.SIGKILL)


@pytest.fixture
def job(tmp_path: Path, collector: Collector) -> Iterator[Job]:
    job = Job(tmp_path, collector.url)
    yield job
    job.end()


def assert_complete(job: Job, collector: Collector) -> None:
    """The collector has each completed step of each program once, and no later one that was not about to complete."""
    with stored.opened(collector.database_url) as database:
        rank_of = {row.id: row.rank for row in stored.table(database, tables.streams, job.run)}
        found, states = stored.rows(database, job.run), stored.streams(database, job.run)
    steps = {rank_of[stream]: [step for step, _ in rows] for stream, rows in found.items()}
    for program in job.programs:
        last = steps[program.rank][-1]
        assert list(range(last + 1)) == steps[program.rank]
        assert last in (program.last_step, program.last_step + 1), program.rank
    for state in states.values():
        assert {} == state["lost"]
        assert "lost" == state["bye"]["reason"]
        assert state["last_step"] == state["bye"]["step"]
        assert state["last_step"] + 1 == state["counters"]["applied"]
        assert 0 < state["latest"]["loss"]


def ended(job: Job, collector: Collector) -> bool:
    with stored.opened(collector.database_url) as database:
        found = stored.streams(database, job.run).values()
    return len(found) == len(job.programs) and all(state["bye_reason"] for state in found)


def test_the_last_completed_step_of_a_killed_program_is_at_the_collector(job: Job, collector: Collector) -> None:
    job.start(KILLS)
    dice = random.Random(17)
    for program in job.programs:
        program.follow(dice.randint(5, 150))
        program.kill()
    wait_for(lambda: ended(job, collector), "all streams have ended")
    assert_complete(job, collector)
    assert any(program.used_fast_path for program in job.programs)


def test_a_shipper_that_is_killed_with_the_programs_loses_no_step(job: Job, collector: Collector) -> None:
    job.start(2)
    for program in job.programs:
        program.follow(5)
    os.kill(job.shipper, signal.SIGKILL)
    for program in job.programs:
        program.kill()
    again = ship_once(job.folder / job.run, collector.url)
    assert 0 == again.returncode, again.stdout
    assert ended(job, collector)
    assert_complete(job, collector)
    assert [] == list(Path("/dev/shm").glob(f"ammeter-*/{job.run}/*"))


def test_a_program_that_hangs_shows_its_last_completed_step(job: Job, collector: Collector) -> None:
    job.start(2, hangs_after=HANGS_AFTER)
    begun = dict[int, float]()
    for program in job.programs:
        program.follow(MAX_STEPS, HANGS_AFTER)
        begun[program.rank] = time.monotonic()
    wait_for(lambda: completed(job, collector) == [HANGS_AFTER, HANGS_AFTER], "both last steps are known")
    assert HANG_SECONDS > time.monotonic() - max(begun.values())
    run = collector.ask(f"/api/v1/runs/{job.run}")
    assert HANGS_AFTER == run["last_step"]
    assert "running" == run["state"]
    for program in job.programs:
        program.kill()
    wait_for(lambda: ended(job, collector), "both streams have ended")
    assert_complete(job, collector)


def completed(job: Job, collector: Collector) -> list[Any]:
    """The newest step that the collector knows of each rank."""
    with stored.opened(collector.database_url) as database:
        rows = stored.table(database, tables.streams, job.run)
    return sorted(max(row.last_step or -1, row.completed_step or -1) for row in rows)
