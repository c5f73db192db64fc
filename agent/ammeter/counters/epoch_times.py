"""Estimates the duration of an epoch from the data that a run reports.

The functions are pure, and the result does not depend on the order in which the data arrive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_COUNT = 2**53
"""Upper bound for plausible numbers of steps or samples. JSON readers that store numbers as doubles round integers
above 2^53."""

SAMPLES_PER_EPOCH = ("samples_per_epoch", "dataset_size", "train_size", "num_train_samples", "train_samples")
"""Names of settings that contain the number of samples in the training data."""


def with_epoch(before: Any, epoch: float, time: int) -> list[Any]:
    """Adds one reported epoch number to the range of epochs seen so far.

    Only differences of epoch numbers are used, so the number that a program counts from does not matter.

    Args:
        before: The list that the last call returned, or None.
        epoch: The reported epoch number.
        time: Time of the report in ns.

    Returns:
        [first reported epoch, its time, highest epoch, time at which it was first reached]
    """
    first, began, last, reached = before or (epoch, time, epoch, time)
    if time < began:
        first, began = epoch, time
    if epoch > last or (epoch == last and time < reached):
        last, reached = epoch, time
    return [first, began, last, reached]


def from_config(config: Mapping[str, Any], world_size: int) -> dict[str, float]:
    """Reads steps_per_epoch, and samples_per_epoch of one rank, from a config."""
    settings: dict[str, float] = {}
    if _is_count(config.get("steps_per_epoch")):
        settings["steps_per_epoch"] = config["steps_per_epoch"]
    samples = next((config[name] for name in SAMPLES_PER_EPOCH if _is_count(config.get(name))), None)
    if samples is not None:
        settings["samples_per_epoch"] = samples / max(1, world_size)
    return settings


def seconds(counters: Mapping[str, Any]) -> float | None:
    """Returns the duration of an epoch in seconds, or None if it is unknown.

    The sources, in this order: the first and the highest epoch number in run.log; the config's steps per epoch with the
    mean step time; the size of the data set with the samples per step.
    """
    epochs, spent = counters.get("epochs"), counters.get("step_seconds", 0)
    if epochs and epochs[2] > epochs[0]:
        duration = (epochs[3] - epochs[1]) / 1e9 / (epochs[2] - epochs[0])
    elif counters.get("steps_per_epoch") and counters.get("steps"):
        duration = counters["steps_per_epoch"] * spent / counters["steps"]
    elif counters.get("samples_per_epoch") and counters.get("samples"):
        duration = counters["samples_per_epoch"] * spent / counters["samples"]
    else:
        return None
    return float(duration) if 0 < duration < math.inf else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_COUNT
