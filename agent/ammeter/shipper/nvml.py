"""Reads device metrics of this host from NVML, in a separate thread.

A driver may hang forever, so that no other thread calls it.

nvidia-ml-py is used as it is installed. Values are checked for plausibility: drivers report unknown values with all
bits set.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

READ_SECONDS = 5.0
"""Interval between two readings."""

HANG_SECONDS = 30.0
"""Duration of a reading of all devices above which the driver counts as hung. A reading takes milliseconds; the first
one takes seconds if the driver has to wake the devices."""

MAX_FAILURES = 3
"""Consecutive failures after which a reading is not repeated."""

MAX_DEVICES = 16
"""Limit of devices per host."""

REMEDY = "install it where the training runs: pip install ammeter[nvml]"

_SENSOR = 0  # NVML_TEMPERATURE_GPU


@dataclass(frozen=True)
class Device:
    """A device.

    gpu: its index on this host. uuid: such as GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52.
    """

    gpu: str
    uuid: str
    model: str


@dataclass(frozen=True)
class DeviceReading:
    """One reading of all devices.

    time: nanoseconds since the epoch. values: '<name>.<gpu>' -> value, NaN for a failed reading.
    """

    time: int
    values: dict[str, float]


@dataclass(frozen=True)
class Disabled:
    """A reading that is no longer made; an empty gpu means all devices."""

    gpu: str
    reading: str
    reason: str


Result = Sequence[Device] | DeviceReading | Disabled
"""The devices once, then readings, and readings that are disabled."""


def _utilization(nvml: Any, handle: Any) -> float:
    return _plausible(nvml.nvmlDeviceGetUtilizationRates(handle).gpu, 100, "%") / 100


def _memory(nvml: Any, handle: Any) -> float:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return _plausible(memory.used, min(memory.total, 2**50), "bytes")


def _power(nvml: Any, handle: Any) -> float:
    return _plausible(nvml.nvmlDeviceGetPowerUsage(handle), 20_000_000, "mW") / 1000


def _temperature(nvml: Any, handle: Any) -> float:
    return _plausible(nvml.nvmlDeviceGetTemperature(handle, _SENSOR), 200, "degrees")


READINGS: dict[str, Callable[[Any, Any], float]] = {
    "utilization": _utilization,
    "memory_used_bytes": _memory,
    "power_watts": _power,
    "temperature_celsius": _temperature,
}


def _plausible(value: int, maximum: int, unit: str) -> float:
    if not 0 <= value <= maximum:
        raise ValueError(f"the driver reports {value} {unit}, more than {maximum}")
    return float(value)


class Nvml:
    """Reads the devices with these UUIDs until stop(). Its thread queues results for results()."""

    def __init__(self, uuids: Sequence[str], interval_seconds: float | None = None) -> None:
        self._uuids = tuple(uuids)[:MAX_DEVICES]
        self._interval_seconds = READ_SECONDS if interval_seconds is None else interval_seconds
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._stopped = threading.Event()
        self._busy_since: float | None = time.monotonic()
        self._failures: dict[tuple[str, str], int] = {}
        # A daemon thread: a hanging driver must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name="ammeter-nvml", daemon=True)
        self._thread.start()

    def results(self) -> list[Result]:
        """Returns the results since the last call: the devices once, then readings."""
        results: list[Result] = []
        while True:
            try:
                results.append(self._results.get_nowait())
            except Empty:
                return results

    @property
    def hangs(self) -> bool:
        busy = self._busy_since
        return busy is not None and time.monotonic() - busy > HANG_SECONDS

    def stop(self) -> None:
        """Stops the thread without waiting for it."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._read_all()
        except Exception as error:  # noqa: BLE001 - an error of the driver's library must not end the shipper
            self._results.put(Disabled("", "", _describe(error)))
        self._busy_since = None

    def _read_all(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            self._results.put(Disabled("", "", f"{error}; {REMEDY}"))
            return
        pynvml.nvmlInit()
        devices = [device for uuid in self._uuids if (device := self._find(pynvml, uuid)) is not None]
        devices.sort(key=lambda device: int(device[0].gpu))
        self._results.put([device for device, _ in devices])
        while devices and not self._stopped.is_set():
            now = time.time_ns()
            values = {
                f"{name}.{device.gpu}": value
                for device, handle in devices
                for name in READINGS
                if (value := self._value(pynvml, device, handle, name)) is not None
            }
            self._results.put(DeviceReading(now, values))
            self._busy_since = None
            self._stopped.wait(self._interval_seconds)
            self._busy_since = time.monotonic()

    def _find(self, nvml: Any, uuid: str) -> tuple[Device, Any] | None:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            return Device(str(nvml.nvmlDeviceGetIndex(handle)), uuid, _text(nvml.nvmlDeviceGetName(handle))), handle
        except Exception as error:  # noqa: BLE001 - a part of a divided device, or one that is hidden from NVML
            self._results.put(Disabled(uuid, "", _describe(error)))
            return None

    def _value(self, nvml: Any, device: Device, handle: Any, name: str) -> float | None:
        """Reads one value; NaN after a failure, None for a disabled reading."""
        key = device.gpu, name
        failures = self._failures.get(key, 0)
        if failures >= MAX_FAILURES:
            return None
        try:
            value = READINGS[name](nvml, handle)
        except Exception as error:  # noqa: BLE001 - not supported, device removed, or an implausible value
            self._failures[key] = failures + 1
            if failures + 1 == MAX_FAILURES:
                self._results.put(Disabled(device.gpu, name, _describe(error)))
            return math.nan
        self._failures[key] = 0
        return value


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
