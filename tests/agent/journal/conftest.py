"""A writer in this process, and one in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.journal import Journal
from tests.agent.journal.journals import HELLO


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "stream", segment_bytes=2_000)
    opened.hello(HELLO)
    yield opened
    opened.close()


_WRITER = """
import sys, time
from pathlib import Path
from ammeter.journal import Journal
from ammeter.wire.frames import Bye, Hello, Schema, Steps
hot = Path(sys.argv[2]) if len(sys.argv) > 2 else None
journal = Journal(Path(sys.argv[1]), hot=hot, hot_bytes=1_000_000 if hot else 0, segment_bytes=2_000)
journal.hello(Hello(run="r", stream="s", schema=Schema()))
for step in range(50):
    journal.append(Steps(step, 1_000 + step, bytes(60)))
print("written", flush=True)
for line in sys.stdin:
    if line == "bye\\n":
        journal.append(Bye("closed", 49, 7))
        journal.close()
        print("closed", flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A writer in a process of its own, after 50 rows."""
    words = [sys.executable, "-c", _WRITER, str(tmp_path / "stream"), str(tmp_path / "hot")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout
        assert "written\n" == started.stdout.readline()
        yield started
        started.kill()
