"""What a run costs: the time that its ranks had their devices for, at the price of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ammeter_server import prices
from ammeter_server.prices import Prices
from ammeter_server.store import Row

HOUR = 3600 * 10**9


def of_run(said: Prices, environment: Mapping[str, Any] | None, ranks: Sequence[Row[Any]]) -> float | None:
    """Dollars so far: one device for each rank. None where no price fits. ranks: streams of all lives of them."""
    price = _price(said, environment)
    return None if price is None else price * sum(map(held, ranks)) / HOUR


def per_epoch(said: Prices, environment: Mapping[str, Any] | None, ranks: Sequence[Row[Any]]) -> float | None:
    """Dollars for one pass over the data, as the lowest rank that knows it has it; None where nobody does."""
    price = _price(said, environment)
    lately = sorted(ranks, key=lambda stream: (stream.rank, -stream.started))
    seconds = next((each for stream in lately if (each := epoch_seconds(stream.counters)) is not None), None)
    if price is None or seconds is None:
        return None
    return price * seconds * len({stream.rank for stream in ranks}) / 3600


def held(stream: Row[Any]) -> int:
    """ns that a rank had its device for, by its own clock alone: what is sent a day later costs no day more. Of one
    that died, which is noted later, until its last step."""
    died = stream.bye_reason in (None, "lost")
    until = stream.last_step_time if died else max(stream.bye.get("time") or 0, stream.last_step_time or 0)
    return max(0, (until or 0) - stream.started) if stream.started else 0


def epoch_seconds(counters: Mapping[str, Any]) -> float | None:
    """How long an epoch takes: from the first number of one that run.log said to the last, else by the steps of one
    that the run's config says."""
    said = counters.get("epochs")
    if said and said[2] > said[0]:
        seconds = (said[3] - said[1]) / 1e9 / (said[2] - said[0])
    elif counters.get("steps_per_epoch") and counters.get("steps"):
        seconds = counters["steps_per_epoch"] * counters["step_seconds"] / counters["steps"]
    else:
        return None
    return seconds if 0 < seconds < math.inf else None


def _price(said: Prices, environment: Mapping[str, Any] | None) -> float | None:
    return prices.of(said, str((environment or {}).get("device") or ""))
