"""The stream of a host as its journal has it, against a compiled stand-in for NVIDIA's library."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire import columns
from ammeter.wire.frames import Bye, Event, Frame, Hello, Steps
from tests.agent.fake_nvml import MODEL, UUIDS, FakeNvml
from tests.agent.ship_parts import RUN, hello, present_frames

READ = """
import sys, time
from pathlib import Path
from ammeter import journal
from ammeter.shipper import nvml, telemetry
nvml.HANG_SECONDS, telemetry.SETTLE_SECONDS, telemetry.CHECK_SECONDS = 1.0, 0.0, 0.0
nvml.READ_SECONDS = float(sys.argv[3])
folder = Path(sys.argv[1])
shows = lambda about, state, line: print(line)
reader, until = telemetry.Telemetry(folder, shows), time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    reader.poll(journal.streams(folder), time.monotonic())
    time.sleep(0.002)
reader.stop()
reader.stop()
"""


@pytest.fixture
def library(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path)


def rank(folder: Path, number: int, **said: Any) -> Journal:
    """A rank that trains, on the device of its number, and that the collector knows."""
    stream = f"{number:032x}"
    opened = Journal(folder / RUN / stream)
    environment = {"device_uuid": UUIDS[number]}
    opened.hello(Hello(RUN, stream, hello().schema, rank=number, world_size=2, environment=environment, **said))
    journal.acknowledge(opened.folder, 1)
    return opened


def read(folder: Path, seconds: float = 3.0, every: float = 5.0) -> tuple[list[list[Frame]], list[str]]:
    """The frames of the host's streams, and the lines that the log got."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", READ, str(folder / RUN), str(seconds), str(every)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    streams = [present_frames(stream) for stream in journal.streams(folder / RUN)]
    return [
        frames for frames in streams if isinstance(frames[0], Hello) and frames[0].role == "host"
    ], done.stdout.splitlines()


def test_the_stream_says_whose_it_is_which_devices_there_are_and_what_they_do(library: FakeNvml) -> None:
    several = [rank(library.folder, number, project="speech", name="night") for number in (0, 1)]
    before = time.time_ns()
    ((first, found, *rows, last),), lines = read(library.folder)
    assert isinstance(first, Hello)
    assert (RUN, "host", 2, "speech", "night") == (first.run, first.role, first.world_size, first.project, first.name)
    assert before < first.started < time.time_ns()
    assert isinstance(found, Event)
    devices = [{"gpu": str(number), "uuid": UUIDS[number], "model": MODEL} for number in (0, 1)]
    assert ("devices.found", {"devices": devices}) == (found.name, found.data)
    values = columns.view(first.schema, [frame for frame in rows if isinstance(frame, Steps)])
    assert [[512.0], [61.0]] == [values.scalar(name).tolist() for name in ("power_watts.1", "temperature_celsius.0")]
    assert isinstance(last, Bye)
    assert ("closed", []) == (last.reason, lines)
    assert [0.75, 0.75] == [journal.DeviceUse(of_rank.folder).poll() for of_rank in several]
    for rank_journal in several:
        rank_journal.close()


def test_a_driver_that_hangs_ends_the_stream_with_nothing_known_and_is_said_once(library: FakeNvml) -> None:
    library.set(power="hang")
    alone = rank(library.folder, 0)
    ((first, _, row, last),), lines = read(library.folder)
    assert isinstance(first, Hello)
    assert isinstance(row, Steps)
    values = columns.view(first.schema, [row]).values
    assert columns.measured(values).all()
    assert all(map(math.isnan, values[:, 0].tolist()))
    assert (True, ["devices are not read: NVML does not respond: the driver hangs"]) == (isinstance(last, Bye), lines)
    alone.close()


def test_nothing_is_read_for_a_rank_that_the_collector_does_not_know(library: FakeNvml) -> None:
    alone = rank(library.folder, 0)
    journal.acknowledge(alone.folder, 0)
    assert ([], []) == read(library.folder, 0.3)
    alone.close()


def test_nothing_is_read_for_ranks_that_have_ended_or_train_on_no_device_of_nvidias(library: FakeNvml) -> None:
    rank(library.folder, 0).close()
    other = Journal(library.folder / RUN / f"{9:032x}")
    other.hello(hello(f"{9:032x}"))
    journal.acknowledge(other.folder, 1)
    assert ([], []) == read(library.folder, 0.3)
    other.close()


def test_a_reading_that_is_left_alone_is_in_the_stream_and_in_the_log_once(library: FakeNvml) -> None:
    alone = rank(library.folder, 0)
    library.set(power="unsupported")
    ((_, _, *frames, _),), lines = read(library.folder, every=0.1)
    (event,) = [frame for frame in frames if isinstance(frame, Event)]
    why = "NVMLError_NotSupported: Not Supported"
    assert ("device.unreadable", {"gpu": "0", "reading": "power_watts", "why": why}) == (event.name, event.data)
    assert [f"power_watts of device 0 is no longer read: {why}"] == lines
    alone.close()
