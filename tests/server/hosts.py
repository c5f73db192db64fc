"""A host's stream as its shipper writes it: NVML readings of a run's devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ammeter.wire.frames import Hello, Schema
from ammeter_server.runs.devices import READINGS
from tests.server.feeding import Stream

BUSY = {"utilization": 0.75, "memory_used_bytes": 2.0**36, "power_watts": 500.0, "temperature_celsius": 60.0}


def columns(gpus: int) -> Schema:
    return Schema(scalars=tuple(f"{name}.{gpu}" for gpu in range(gpus) for name in READINGS))


@dataclass
class Host(Stream):
    """The stream of a host with a number of devices.

    read() adds one reading of all.
    """

    host: str = "node-1"
    gpus: int = 1
    begin: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        self.schema = columns(self.gpus)
        found = [
            {"gpu": str(gpu), "uuid": f"GPU-{self.host}-{gpu}", "model": "NVIDIA H200"} for gpu in range(self.gpus)
        ]
        self.say("devices.found", 0, devices=found)

    def hello(self) -> Hello:
        return Hello(
            run=self.run,
            stream=self.stream,
            schema=self.schema,
            role="host",
            world_size=self.world_size,
            host=self.host,
            started=self.begin,
            name=self.name,
            project=self.project,
        )

    def read(self, step: int, readings: Mapping[str, float] = BUSY) -> None:
        """Adds the same reading of every device."""
        self.tell(step, {f"{name}.{gpu}": value for gpu in range(self.gpus) for name, value in readings.items()})
