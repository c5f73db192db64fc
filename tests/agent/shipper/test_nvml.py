"""Against a compiled stand-in for NVIDIA's library: nothing here has met a real driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.fake_nvml import MODEL, UUIDS, FakeNvml

READ = """
import sys, time
from ammeter.shipper import nvml
nvml.HANG_SECONDS = 1.0
reader = nvml.Nvml(sys.argv[2:], interval_seconds=0.005)
until, rounds = time.monotonic() + 10, 0
while rounds < int(sys.argv[1]) and time.monotonic() < until and not reader.hangs:
    for said in reader.results():
        rounds += isinstance(said, nvml.DeviceReading) or (isinstance(said, nvml.Disabled) and not said.gpu)
        print(said if not isinstance(said, nvml.DeviceReading) else said.values)
    time.sleep(0.001)
print("hangs" if reader.hangs else "answers")
reader.stop()
"""


@pytest.fixture
def library(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path)


def said(folder: Path, *uuids: str, rounds: int = 1, before: str = "") -> list[str]:
    """What a reader said, a line each, until so many readings; last, whether it hung."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", before + READ, str(rounds), *uuids]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.splitlines()


def test_the_devices_with_these_uuids_are_read_in_base_units(library: FakeNvml) -> None:
    found, values, end = said(library.folder, UUIDS[1])
    assert f"[Device(gpu='1', uuid='{UUIDS[1]}', model='{MODEL}')]" == found
    read = {"utilization": 0.75, "memory_used_bytes": 2.0**36, "power_watts": 512.0, "temperature_celsius": 61.0}
    assert repr({f"{name}.1": value for name, value in read.items()}) == values
    assert "answers" == end


@pytest.mark.parametrize(
    ("answers", "reading", "reason"),
    [
        ({"power": "unsupported"}, "power_watts", "NVMLError_NotSupported: Not Supported"),
        ({"utilization": "lost"}, "utilization", "NVMLError_GpuIsLost: GPU is lost"),
        ({"power": "4294967295"}, "power_watts", "ValueError: the driver reports 4294967295 mW, more than 20000000"),
        (
            {"memory": "18446744073709551615"},
            "memory_used_bytes",
            "ValueError: the driver reports 18446744073709551615 bytes",
        ),
    ],
)
def test_a_reading_that_fails_or_lies_is_unknown_then_left_alone_and_said_once(
    library: FakeNvml, answers: dict[str, str], reading: str, reason: str
) -> None:
    library.set(**answers)
    _, *lines, end = said(library.folder, UUIDS[0], rounds=6)
    told = [line for line in lines if line.startswith("Disabled")]
    assert 1 == len(told)
    assert f"gpu='0', reading='{reading}', reason={reason!r}"[:-1] in told[0]
    values = [line for line in lines if not line.startswith("Disabled")]
    assert [True] * 3 + [False] * 3 == [f"'{reading}.0': nan" in line for line in values]
    assert [True] * 3 + [False] * 3 == [f"'{reading}.0'" in line for line in values]
    assert all("'temperature_celsius.0': 61.0" in line for line in values)
    assert "answers" == end


def test_a_driver_that_hangs_is_noticed_by_who_does_not_wait_for_it(library: FakeNvml) -> None:
    library.set(temperature="hang")
    found, end = said(library.folder, UUIDS[0])
    assert (f"[Device(gpu='0', uuid='{UUIDS[0]}', model='{MODEL}')]", "hangs") == (found, end)


def test_a_device_that_nvml_does_not_know_is_said_and_the_others_are_read(library: FakeNvml) -> None:
    unknown, found, _, end = said(library.folder, "GPU-0", UUIDS[0])
    assert "Disabled(gpu='GPU-0', reading='', reason='NVMLError_NotFound: " in unknown
    assert (True, "answers") == ("gpu='0'" in found, end)


def test_without_the_library_or_the_package_one_line_says_why(tmp_path: Path) -> None:
    assert "NVMLError_LibraryNotFound" in said(tmp_path, UUIDS[0])[0]
    (line, _) = said(tmp_path, UUIDS[0], before="import sys; sys.modules['pynvml'] = None\n")
    assert "pip install ammeter[nvml]" in line
