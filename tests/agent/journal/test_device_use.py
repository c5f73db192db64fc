"""The shipper leaves a reading of the device in a stream's folder, and the training process reads each once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ammeter.journal import DeviceUse, note_utilization


def test_each_reading_is_returned_once(tmp_path: Path) -> None:
    use = DeviceUse(tmp_path)
    assert use.poll() is None
    note_utilization(tmp_path, 0.75)
    assert [0.75, None] == [use.poll(), use.poll()]
    note_utilization(tmp_path, 0.25)
    assert 0.25 == use.poll()


def test_an_old_reading_is_of_another_time(tmp_path: Path) -> None:
    note_utilization(tmp_path, 0.75)
    long_ago = time.time() - 60
    os.utime(tmp_path / "device", (long_ago, long_ago))
    assert DeviceUse(tmp_path).poll() is None


@pytest.mark.parametrize("content", [b"", b"all of it", b"1.5", b"nan", b"-0.1", b"\xff"])
def test_what_no_shipper_writes_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "device").write_bytes(content)
    assert DeviceUse(tmp_path).poll() is None


def test_a_link_and_a_folder_that_is_gone_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("0.5")
    (tmp_path / "device").symlink_to(tmp_path / "elsewhere")
    assert DeviceUse(tmp_path).poll() is None
    note_utilization(tmp_path / "gone", 0.5)
    assert not (tmp_path / "gone").exists()
