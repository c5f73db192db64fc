"""How long an epoch takes, from what a run says of its epochs: pure, and the same in whichever order it comes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST = 2**53
"""Where a number of steps or samples is no longer believed: beyond it JSON's readers have another one for it."""

SAMPLES_PER_EPOCH = ("samples_per_epoch", "dataset_size", "train_size", "num_train_samples", "train_samples")
"""Settings that say how many samples the training data has."""


def with_epoch(before: Any, epoch: float, time: int) -> list[Any]:
    """[the first that was said, when, the highest, when first]: whatever a program counts from, its epochs lie between
    the two."""
    first, began, last, reached = before or (epoch, time, epoch, time)
    if time < began:
        first, began = epoch, time
    if epoch > last or (epoch == last and time < reached):
        last, reached = epoch, time
    return [first, began, last, reached]


def said_by(config: Mapping[str, Any], world_size: int) -> dict[str, float]:
    """What a config says: steps_per_epoch, or samples_per_epoch of one rank."""
    found: dict[str, float] = {}
    if _is_count(config.get("steps_per_epoch")):
        found["steps_per_epoch"] = config["steps_per_epoch"]
    samples = next((config[name] for name in SAMPLES_PER_EPOCH if _is_count(config.get(name))), None)
    if samples is not None:
        found["samples_per_epoch"] = samples / max(1, world_size)
    return found


def seconds(counters: Mapping[str, Any]) -> float | None:
    """How long an epoch takes: from the first number of one that run.log said to the last; else by the steps of one
    that the config says; else by the samples of the data set and those that steps have."""
    said, spent = counters.get("epochs"), counters.get("step_seconds", 0)
    if said and said[2] > said[0]:
        found = (said[3] - said[1]) / 1e9 / (said[2] - said[0])
    elif counters.get("steps_per_epoch") and counters.get("steps"):
        found = counters["steps_per_epoch"] * spent / counters["steps"]
    elif counters.get("samples_per_epoch") and counters.get("samples"):
        found = counters["samples_per_epoch"] * spent / counters["samples"]
    else:
        return None
    return float(found) if 0 < found < math.inf else None


def _is_count(said: Any) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool) and 0 < said < MOST
