"""The OpenTelemetry metric of each signal: its name, unit and attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ammeter.recorded.recorded_run import Stream
from ammeter.recorded.signal_names import Signal
from ammeter.wire.frames import LOSS, LOSS_BACKWARD

FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\-/]")
"""Characters that OpenTelemetry refuses in the name of an instrument."""

MAX_NAME_CHARS = 255
"""Longest name of an instrument in OpenTelemetry's specification."""

OWN_UNITS = {"_seconds": "s", "_bytes": "By"}
"""Ending of a column -> its unit."""


@dataclass(frozen=True)
class Description:
    """How a signal is sent.

    Attributes:
        unit: Empty if it is not known.
        adds_up: Whether the values of several sources add up, as memory does; sent as a sum that may fall.
    """

    name: str
    unit: str
    meaning: str
    attributes: Mapping[str, Any]
    adds_up: bool = False


HARDWARE = {
    "utilization": ("hw.gpu.utilization", "1", False),
    "memory_used_bytes": ("hw.gpu.memory.usage", "By", True),
    "power_watts": ("hw.power", "W", False),
    "temperature_celsius": ("hw.temperature", "Cel", False),
}
"""Reading of a device -> its metric in OpenTelemetry's semantic conventions for hardware, unit, whether it adds up."""


def describe(signal: Signal, stream: Stream) -> Description:
    """Returns the metric of a signal; that of a device has the name of the semantic conventions."""
    if stream.rank is None:
        return _of_device(signal, stream)
    attributes: dict[str, Any] = {"ammeter.rank": stream.rank}
    if signal.tensor is not None:
        attributes["ammeter.tensor"] = signal.name.partition("/")[2]
        return Description(f"ammeter.tensor.{signal.column}", "", signal.meaning, attributes)
    loss, _, line = signal.column.partition("@")
    if line and loss in (LOSS, LOSS_BACKWARD):
        return Description(f"ammeter.{loss}", "", signal.meaning, attributes | {"ammeter.line": line})
    return _of_scalar(signal, attributes)


def _of_scalar(signal: Signal, attributes: Mapping[str, Any]) -> Description:
    name = FORBIDDEN.sub("_", f"ammeter.{signal.column}")[:MAX_NAME_CHARS]
    if name != f"ammeter.{signal.column}":
        attributes = {**attributes, "ammeter.signal": signal.column}
    unit = next((unit for ending, unit in OWN_UNITS.items() if signal.column.endswith(ending)), "")
    return Description(name, unit, signal.meaning, attributes)


def _of_device(signal: Signal, stream: Stream) -> Description:
    reading, _, gpu = signal.column.rpartition(".")
    device: Mapping[str, str] = next((device for device in stream.scan.devices if device.get("gpu") == gpu), {})
    if reading not in HARDWARE:
        return _of_scalar(signal, {})
    name, unit, adds_up = HARDWARE[reading]
    attributes = {"hw.id": device.get("uuid", gpu), "hw.name": f"GPU {gpu}", "hw.model": device.get("model", "")}
    if not name.startswith("hw.gpu."):
        attributes["hw.type"] = "gpu"
    return Description(name, unit, "", {name: value for name, value in attributes.items() if value}, adds_up)


def step_of(stream: Stream) -> Description:
    """Returns the metric that says which step of a stream ended at a time."""
    attributes = {} if stream.rank is None else {"ammeter.rank": stream.rank}
    name = "ammeter.reading" if stream.rank is None else "ammeter.step"
    return Description(name, "1", "number of the row that ended at this time", attributes)
