"""A collector that misbehaves on purpose, and the folders and writers of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.journal import Journal
from tests.agent.collector_double import CollectorDouble, collector_double
from tests.agent.ship_parts import RUN, STREAM, until, writer
from tests.agent.shipper.processes import PYTHONPATH, lock_owner, seen_shippers


@pytest.fixture
def double() -> Iterator[CollectorDouble]:
    with collector_double() as opened:
        yield opened


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Journal]:
    made = writer(tmp_path / RUN)
    yield made
    made.close()


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run's folder. Whatever still ships it after the test is ended."""
    folder = tmp_path / RUN
    folder.mkdir()
    yield folder
    for lock in folder.glob("shipper.*.lock"):
        owner = lock_owner(lock)
        if owner:
            os.kill(owner, signal.SIGKILL)
            until(lambda lock=lock: not lock_owner(lock))  # type: ignore[misc]
    for pid in seen_shippers - {0, os.getpid()}:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    seen_shippers.clear()


_WRITER = """
import sys, time
from pathlib import Path
from ammeter.environment import identity
from tests.agent.ship_parts import event, hello, row
from ammeter.journal import Journal
journal = Journal(Path(sys.argv[1]), hot=Path(sys.argv[2]), hot_bytes=100_000, segment_bytes=20_000)
journal.hello(hello(host=identity.host()))
step = 0
while True:
    journal.append(row(step))
    step += 1
    if step == 50:
        print("far enough", flush=True)
    time.sleep(0.0005)
"""


@pytest.fixture
def killed(run_folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A writer in a process of its own that goes on until it is killed."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((PYTHONPATH, root))}
    words = [sys.executable, "-c", _WRITER, str(run_folder / STREAM), str(run_folder / "hot")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert "far enough\n" == process.stdout.readline()
        yield process
        process.kill()
