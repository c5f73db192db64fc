"""Adds single frames, events and hellos, to the counters of a stream.

Pure, and limited in size for any content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ammeter.counters import epoch_times
from ammeter.wire.frames import Event, Hello
from ammeter.wire.printable import storable

Counters = dict[str, Any]

MAX_SUM = 2**53
"""Upper limit of a sum: beyond it JSON parsers, SQL and Prometheus each represent it differently."""

MAX_DEVICES = 16
MAX_FALLBACKS = 32
MAX_OPERATORS = 16
MAX_NAME_CHARS = 128
"""Caps on data that grows with names from outside and is written with every batch: devices of a host, operators with a
fallback, timed operators, characters of a name."""

RESTORES = ("passed", "partial", "failed")
"""Outcomes of reading a checkpoint back."""

OTHER = "_other"
"""The name for entries beyond a cap."""


def add_event(after: Counters, event: Event) -> None:
    """Adds an event to the counters."""
    if event.name == "scaler.backoff":
        after["backoffs"] += 1
    elif event.name == "scaler.growth":
        after["growths"] += 1
    elif event.name == "values.logged":
        samples = event.data.get("samples", 0)
        after["samples"] += samples if isinstance(samples, int | float) and 0 < samples < np.inf else 0
        epoch = event.data.get("epoch")
        if isinstance(epoch, int | float) and np.isfinite(epoch):
            add_epoch(after, float(epoch), event.time)
    elif event.name == "devices.found":
        after["devices"] = _devices(event.data.get("devices"))
    elif event.name == "checkpoint.saved":
        _add_checkpoint(after, event)
    elif event.name == "checkpoint.verified":
        _add_restore(after, event)
    elif event.name == "kernel.fallback":
        after["fallbacks"] = _with_fallback(after.get("fallbacks", {}), event)
    elif event.name == "kernels.timed" and event.data.get("phase") == "forward":
        after["operators"] = _operator_seconds(event.data) or after.get("operators", {})


def add_hello(after: Counters, hello: Hello) -> None:
    """Stores the run's config values about its epochs."""
    after.update(epoch_times.from_config(hello.config, hello.world_size))


def add_epoch(after: Counters, epoch: float, time: int) -> None:
    after["epochs"] = epoch_times.with_epoch(after.get("epochs"), epoch, time)


def _devices(listed: Any) -> dict[str, dict[str, str]]:
    """Returns number -> identifiers of the device."""
    devices = [device for device in listed if isinstance(device, Mapping)] if isinstance(listed, list | tuple) else []
    return {
        storable(str(device.get("gpu", ""))[:MAX_NAME_CHARS]): {
            name: storable(str(device.get(name, ""))[:MAX_NAME_CHARS]) for name in ("uuid", "model")
        }
        for device in devices[:MAX_DEVICES]
    }


def _add_restore(after: Counters, event: Event) -> None:
    """Counts a checkpoint that was read back.

    The outcome `skipped`, for a checkpoint that cannot be judged, does not count.
    """
    outcome = event.data.get("outcome")
    if outcome in RESTORES:
        after[f"restores_{outcome}"] += 1


def _add_checkpoint(after: Counters, event: Event) -> None:
    complete = not event.data.get("missing")
    after["checkpoints_complete" if complete else "checkpoints_partial"] += 1
    if complete:
        after["checkpoint_time"] = event.time


def _with_fallback(before: Mapping[str, float], event: Event) -> dict[str, float]:
    """Adds a fallback to "operator reason" -> share of the eligible FLOPs.

    Shares of the same operator and reason add up.
    """
    op, reason = (storable(str(event.data.get(name, ""))[:MAX_NAME_CHARS]) for name in ("op", "reason"))
    share = event.data.get("flops_share", 0.0)
    name = f"{op} {reason}"
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        return dict(before)
    if name not in before and len(before) >= MAX_FALLBACKS:
        name = f"{OTHER} {OTHER}"
    return {**before, name: min(before.get(name, 0.0) + share, 1.0)}


def _operator_seconds(data: Mapping[str, Any]) -> dict[str, float]:
    """Returns "operator dtype" -> its seconds in a typical step; empty if the event has no valid time."""
    listed = data.get("operators")
    found: dict[str, float] = {}
    for operator in listed[:MAX_OPERATORS] if isinstance(listed, list | tuple) else ():
        seconds = operator.get("typical_seconds") if isinstance(operator, Mapping) else None
        if isinstance(seconds, int | float) and 0 <= seconds < MAX_SUM:
            op, dtype = (storable(str(operator.get(name, ""))[:MAX_NAME_CHARS]) for name in ("op", "dtype"))
            name = f"{op} {dtype}"
            found[name] = found.get(name, 0.0) + seconds
    return found
