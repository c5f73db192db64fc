"""The devices that a run trains on, as the shippers of its hosts read them a moment ago: pure, from their streams."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from ammeter_server.db import Row

FRESH = 30 * 10**9
"""ns after which what a shipper said last is not said on: nobody knows what the device does now."""

ALL = "all"
"""In place of a device where all of a host are told as one."""


@dataclass(frozen=True)
class Device:
    """gpu, uuid, model: as NVML has them, and dcgm-exporter. utilization: share of the time that it computed, 0 to 1.

    What could not be read is None.
    """

    host: str
    gpu: str
    uuid: str
    model: str
    utilization: float | None = None
    memory_used_bytes: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None

    @property
    def name(self) -> str:
        """As dcgm-exporter has it."""
        return self.gpu if self.gpu == ALL else f"nvidia{self.gpu}"


READINGS = ("utilization", "memory_used_bytes", "power_watts", "temperature_celsius")


def of_run(streams: Sequence[Row[Any]], now: int) -> list[Device]:
    """Those of the newest stream of each host that is heard of, by host and number."""
    newest: dict[str, Row[Any]] = {}
    for stream in sorted(streams, key=lambda stream: stream.started):
        if stream.role == "host" and stream.bye_reason is None and stream.heard >= now - FRESH:
            newest[stream.host] = stream
    return [device for _, stream in sorted(newest.items()) for device in _of_host(stream)]


def few(devices: Sequence[Device], most: int) -> list[Device]:
    """The same where they are few; else one for each host, the first hosts: the means of all of its devices, and the
    highest temperature."""
    if len(devices) <= most:
        return list(devices)
    of_hosts = [_as_one(list(several)) for _, several in groupby(devices, key=lambda device: device.host)]
    return of_hosts[:most]


def highest(ranks: Sequence[Row[Any]], column: str) -> float | None:
    """The largest of what the newest life of each rank has measured last; None where none has."""
    newest = {stream.rank: stream for stream in sorted(ranks, key=lambda rank: rank.started)}
    known = [value for stream in newest.values() if (value := _number(stream.latest, column)) is not None]
    return max(known, default=None)


def _of_host(stream: Row[Any]) -> Iterable[Device]:
    """In the order of their numbers, as devices.found has them."""
    for gpu, said in sorted(stream.counters.get("devices", {}).items(), key=lambda item: (len(item[0]), item[0])):
        read = {name: _number(stream.latest, f"{name}.{gpu}") for name in READINGS}
        yield Device(stream.host, gpu, said["uuid"], said["model"], **read)


def _as_one(several: Sequence[Device]) -> Device:
    means = {name: _mean([getattr(device, name) for device in several]) for name in READINGS}
    hottest = max(
        (device.temperature_celsius for device in several if device.temperature_celsius is not None), default=None
    )
    one = Device(several[0].host, ALL, "", several[0].model, **means)
    return replace(one, temperature_celsius=hottest)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(latest: Mapping[str, Any], name: str) -> float | None:
    value = latest.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None
