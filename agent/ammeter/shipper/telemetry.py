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
from ammeter.shipper.http import LogState
from ammeter.shipper.nvml import READINGS, Device, DeviceReading, Disabled, Nvml, Result
from ammeter.wire.frames import ABSENT, Bye, Event, Hello, Schema, Steps

CHECK_SECONDS = 1.0
"""Interval between two checks of which ranks train."""

SETTLE_SECONDS = 2.0
"""How long the first rank's device waits for those of the other ranks, so that all are in one stream."""


class Telemetry:
    """Device metrics of one run on one host.

    poll() does what is due, and never waits for the driver.
    """

    def __init__(self, run_folder: Path, log_state: LogState) -> None:
        self._run_folder = run_folder
        self._log_state = log_state
        self._hellos: dict[Path, Hello] = {}
        self._ranks: list[tuple[Path, list[str]]] = []
        """Folders of the ranks that train, and their devices."""
        self._check_at = 0.0
        self._training_since: float | None = None
        self._nvml: Nvml | None = None
        self._uuids: frozenset[str] = frozenset()
        self._first_hello: Hello | None = None
        self._journal: Journal | None = None
        self._devices: list[Device] = []
        self._step = 0
        self._disabled = False

    def poll(self, streams: Iterable[Path], now: float) -> None:
        """Records new readings. streams: folders of the streams that are being shipped."""
        if self._disabled:
            return
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            self._check_ranks(streams, now)
        if self._nvml is not None:
            for result in self._nvml.results():
                self._record(result)
            if self._nvml is not None and self._nvml.hangs:
                self._disable("NVML does not respond: the driver hangs")

    def stop(self) -> None:
        """Ends the stream. May be called twice."""
        if self._nvml is not None:
            self._nvml.stop()
        if self._journal is not None:
            self._journal.append(Bye("closed", self._step, time.time_ns()))
            self._journal.close()
        self._nvml = self._journal = self._training_since = None
        self._uuids = frozenset()

    def _check_ranks(self, streams: Iterable[Path], now: float) -> None:
        ranks = [(stream, hello) for stream in streams if (hello := self._training_rank(stream)) is not None]
        self._ranks = [(stream, _uuids(hello)) for stream, hello in ranks]
        hellos = [hello for _, hello in ranks]
        uuids = frozenset(uuid for hello in hellos for uuid in _uuids(hello))
        if not uuids:
            self.stop()
            return
        self._training_since = now if self._training_since is None else self._training_since
        if uuids <= self._uuids or now - self._training_since < SETTLE_SECONDS:
            return
        self.stop()  # a rank came later and needs a new stream, which includes its device
        self._first_hello, self._uuids, self._training_since = hellos[0], uuids, now
        self._nvml = Nvml(sorted(uuids))

    def _training_rank(self, stream: Path) -> Hello | None:
        """Returns the hello of a living rank whose run the collector knows; else None."""
        if stream not in self._hellos:
            first_hello = journal.schema_before(stream, 0)
            if first_hello is None:
                return None
            self._hellos[stream] = first_hello
        hello = self._hellos[stream]
        trains = hello.role == "rank" and _uuids(hello) and journal.is_alive(stream)
        return hello if trains and journal.acknowledged(stream) else None

    def _record(self, result: Result) -> None:
        if isinstance(result, Disabled):
            self._record_disabled(result)
        elif isinstance(result, DeviceReading):
            self._append(result)
        else:
            self._begin_stream(list(result))

    def _begin_stream(self, devices: list[Device]) -> None:
        assert self._first_hello is not None
        if not devices:
            self._disable("NVML finds none of them")
            return
        name, now = uuid.uuid4().hex, time.time_ns()
        self._devices, self._step = devices, 0
        schema = Schema(scalars=tuple(f"{reading}.{device.gpu}" for device in devices for reading in READINGS))
        self._journal = Journal(self._run_folder / name)
        hello = replace(
            self._first_hello, stream=name, schema=schema, role="host", rank=0, pid=os.getpid(), started=now
        )
        self._journal.hello(hello)
        self._journal.append(Event("devices.found", 0, now, {"devices": [asdict(device) for device in devices]}))

    def _append(self, reading: DeviceReading) -> None:
        if self._journal is None:
            return
        read = reading.values
        names = (f"{name}.{device.gpu}" for device in self._devices for name in READINGS)
        values = b"".join(struct.pack("<f", read[name]) if name in read else ABSENT for name in names)
        self._journal.append(Steps(self._step, reading.time, values))
        self._step += 1
        self._note_utilization(read)

    def _note_utilization(self, read: dict[str, float]) -> None:
        """Tells each rank the mean utilization of its devices."""
        of_uuid = {device.uuid: read.get(f"utilization.{device.gpu}", math.nan) for device in self._devices}
        for stream, uuids in self._ranks:
            share = sum(of_uuid.get(uuid, math.nan) for uuid in uuids) / len(uuids)
            if math.isfinite(share):
                journal.note_utilization(stream, share)

    def _record_disabled(self, disabled: Disabled) -> None:
        gpu, reading, reason = disabled.gpu, disabled.reading, disabled.reason
        if not gpu:
            self._disable(reason)
            return
        subject = f"{reading} of device {gpu}" if reading else f"device {gpu}"
        self._log_state(f"nvml {gpu} {reading}", reason, f"{subject} is no longer read: {reason}")
        if self._journal is not None:
            data = {"gpu": gpu, "reading": reading, "why": reason}
            self._journal.append(Event("device.unreadable", self._step, time.time_ns(), data))

    def _disable(self, reason: str) -> None:
        """Stops device readings for the lifetime of this shipper."""
        self._log_state("nvml", reason, f"devices are not read: {reason}")
        if self._journal is not None:
            unknown = [math.nan] * len(self._devices) * len(READINGS)
            self._journal.append(Steps(self._step, time.time_ns(), struct.pack(f"<{len(unknown)}f", *unknown)))
        self.stop()
        self._disabled = True


def _uuids(hello: Hello) -> list[str]:
    return [uuid for uuid in hello.environment.get("device_uuid", "").split(",") if uuid]
