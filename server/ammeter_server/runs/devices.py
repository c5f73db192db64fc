"""The devices that a run trains on, from the latest readings of its hosts' shippers.

Pure: the input is the run's streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from ammeter_server.db import Row
from ammeter_server.runs.rank_totals import REPORTING_NS

ALL = "all"
"""The number of a device that stands for all devices of a host."""


@dataclass(frozen=True)
class Device:
    """One device, or all devices of a host.

    Values that could not be read are None.

    Attributes:
        gpu, uuid, model: As in NVML and dcgm-exporter.
        utilization: Share of time in which it computed, 0 to 1.
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
        """The name in dcgm-exporter."""
        return self.gpu if self.gpu == ALL else f"nvidia{self.gpu}"


READINGS = ("utilization", "memory_used_bytes", "power_watts", "temperature_celsius")


def of_run(streams: Sequence[Row[Any]], now: int) -> list[Device]:
    """Returns the devices of each host, by host and number.

    Reads the newest stream of each host that has not ended and had recent contact: the current state of the devices
    of other hosts is unknown.
    """
    newest: dict[str, Row[Any]] = {}
    for stream in sorted(streams, key=lambda stream: stream.started):
        if stream.role == "host" and stream.bye_reason is None and stream.last_seen >= now - REPORTING_NS:
            newest[stream.host] = stream
    return [device for _, stream in sorted(newest.items()) for device in _of_host(stream)]


def limited(devices: Sequence[Device], max_devices: int) -> list[Device]:
    """Returns the devices, or one per host if there are more than `max_devices`.

    A host's device has the means of its devices and their highest temperature. At most `max_devices` hosts are
    returned.
    """
    if len(devices) <= max_devices:
        return list(devices)
    of_hosts = [_as_one(list(group)) for _, group in groupby(devices, key=lambda device: device.host)]
    return of_hosts[:max_devices]


def highest(ranks: Sequence[Row[Any]], column: str) -> float | None:
    """Returns the largest of the ranks' latest values of a column; None without any.

    Only the newest attempt of each rank counts.
    """
    newest = {stream.rank: stream for stream in sorted(ranks, key=lambda rank: rank.started)}
    known = [value for stream in newest.values() if (value := _number(stream.latest, column)) is not None]
    return max(known, default=None)


def _of_host(stream: Row[Any]) -> Iterable[Device]:
    """Yields the host's devices by number, from the counters of event devices.found."""
    for gpu, identity in sorted(stream.counters.get("devices", {}).items(), key=lambda item: (len(item[0]), item[0])):
        readings = {name: _number(stream.latest, f"{name}.{gpu}") for name in READINGS}
        yield Device(stream.host, gpu, identity["uuid"], identity["model"], **readings)


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
