"""Records the metrics of this host's devices while ranks train on them.

The metrics are a stream of role host. Like all streams it is a journal in the run's folder, which the shipper delivers.
It begins when the collector knows a rank that named its device, and ends with the last such rank. A restarted shipper
begins a new stream.
"""

from __future__ import annotations

import math
import os
import struct
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from msgspec.structs import replace

from ammeter import journal
from ammeter.journal import Journal
from ammeter.shipper.http import Say
from ammeter.shipper.nvml import READINGS, Device, Nvml, Off, Read, Said
from ammeter.wire.frames import ABSENT, Bye, Event, Hello, Schema, Steps

LOOK_SECONDS = 1.0
"""Interval between two checks of which ranks train."""

SETTLE_SECONDS = 2.0
"""How long the first rank's device waits for those of the other ranks, so that all are in one stream."""


class Telemetry:
    """Device metrics of one run on one host.

    poll() does what is due, and never waits for the driver.
    """

    def __init__(self, run_folder: Path, say: Say) -> None:
        self._run_folder = run_folder
        self._say = say
        self._hellos: dict[Path, Hello] = {}
        self._look_at = 0.0
        self._since: float | None = None
        self._nvml: Nvml | None = None
        self._uuids: frozenset[str] = frozenset()
        self._lead: Hello | None = None
        self._journal: Journal | None = None
        self._devices: list[Device] = []
        self._step = 0
        self._over = False

    def poll(self, streams: Iterable[Path], now: float) -> None:
        """Records new readings. streams: folders of the streams that are being shipped."""
        if self._over:
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(streams, now)
        if self._nvml is not None:
            for said in self._nvml.take():
                self._write(said)
            if self._nvml is not None and self._nvml.hangs:
                self._give_up("NVML does not answer: the driver hangs")

    def stop(self) -> None:
        """Ends the stream. May be called twice."""
        if self._nvml is not None:
            self._nvml.stop()
        if self._journal is not None:
            self._journal.append(Bye("closed", self._step, time.time_ns()))
            self._journal.close()
        self._nvml = self._journal = self._since = None
        self._uuids = frozenset()

    def _look(self, streams: Iterable[Path], now: float) -> None:
        training = [hello for each in streams if (hello := self._training(each)) is not None]
        uuids = frozenset(one for hello in training for one in _uuids(hello))
        if not uuids:
            self.stop()
            return
        self._since = now if self._since is None else self._since
        if uuids <= self._uuids or now - self._since < SETTLE_SECONDS:
            return
        self.stop()  # a rank came later and needs a new stream, which includes its device
        self._lead, self._uuids, self._since = training[0], uuids, now
        self._nvml = Nvml(sorted(uuids))

    def _training(self, stream: Path) -> Hello | None:
        """Returns the hello of a living rank whose run the collector knows; else None."""
        if stream not in self._hellos:
            first = journal.schema_before(stream, 0)
            if first is None:
                return None
            self._hellos[stream] = first
        hello = self._hellos[stream]
        trains = hello.role == "rank" and _uuids(hello) and journal.is_alive(stream)
        return hello if trains and journal.acknowledged(stream) else None

    def _write(self, said: Said) -> None:
        if isinstance(said, Off):
            self._leave_alone(said)
        elif isinstance(said, Read):
            self._append(said)
        else:
            self._begin(list(said))

    def _begin(self, devices: list[Device]) -> None:
        assert self._lead is not None
        if not devices:
            self._give_up("none of them is there for NVML")
            return
        name, now = uuid.uuid4().hex, time.time_ns()
        self._devices, self._step = devices, 0
        schema = Schema(scalars=tuple(f"{reading}.{each.gpu}" for each in devices for reading in READINGS))
        self._journal = Journal(self._run_folder / name)
        told = replace(self._lead, stream=name, schema=schema, role="host", rank=0, pid=os.getpid(), started=now)
        self._journal.hello(told)
        self._journal.append(Event("devices.found", 0, now, {"devices": [asdict(each) for each in devices]}))

    def _append(self, read: Read) -> None:
        if self._journal is None:
            return
        names = (f"{reading}.{each.gpu}" for each in self._devices for reading in READINGS)
        values = b"".join(struct.pack("<f", read.values[name]) if name in read.values else ABSENT for name in names)
        self._journal.append(Steps(self._step, read.time, values))
        self._step += 1

    def _leave_alone(self, off: Off) -> None:
        if not off.gpu:
            self._give_up(off.why)
            return
        what = f"{off.reading or 'everything'} of device {off.gpu}"
        self._say(f"nvml {off.gpu} {off.reading}", off.why, f"{what} is not read any more: {off.why}")
        if self._journal is not None:
            data = {"gpu": off.gpu, "reading": off.reading, "why": off.why}
            self._journal.append(Event("device.unreadable", self._step, time.time_ns(), data))

    def _give_up(self, why: str) -> None:
        """Stops device readings for the lifetime of this shipper."""
        self._say("nvml", why, f"devices are not read: {why}")
        if self._journal is not None:
            gone = [math.nan] * len(self._devices) * len(READINGS)
            self._journal.append(Steps(self._step, time.time_ns(), struct.pack(f"<{len(gone)}f", *gone)))
        self.stop()
        self._over = True


def _uuids(hello: Hello) -> list[str]:
    return [each for each in hello.environment.get("device_uuid", "").split(",") if each]
