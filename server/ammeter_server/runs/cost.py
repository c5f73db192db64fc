"""What a run costs: the time that its ranks had their devices for, at the price of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ammeter.verdicts.framework import epoch_times
from ammeter_server.config import prices
from ammeter_server.config.prices import Prices
from ammeter_server.db import Row

HOUR = 3600 * 10**9


def of_run(said: Prices, environment: Mapping[str, Any] | None, ranks: Sequence[Row[Any]]) -> float | None:
    """Dollars so far: one device for each rank. None where no price fits. ranks: streams of all lives of them."""
    price = _price(said, environment)
    return None if price is None else price * sum(map(held, ranks)) / HOUR


def per_epoch(said: Prices, environment: Mapping[str, Any] | None, ranks: Sequence[Row[Any]]) -> float | None:
    """Dollars for one pass over the data, as the lowest rank that knows it has it; None where nobody does."""
    price, seconds = _price(said, environment), seconds_per_epoch(ranks)
    if price is None or seconds is None:
        return None
    return price * seconds * len({stream.rank for stream in ranks}) / 3600


def held(stream: Row[Any]) -> int:
    """ns that a rank had its device for, by its own clock alone: what is sent a day later costs no day more. Of one
    that died, which is noted later, until its last step."""
    died = stream.bye_reason in (None, "lost")
    until = stream.last_step_time if died else max(stream.bye.get("time") or 0, stream.last_step_time or 0)
    return max(0, (until or 0) - stream.started) if stream.started else 0


def seconds_per_epoch(ranks: Sequence[Row[Any]]) -> float | None:
    """How long a pass over the data takes, as the lowest rank that knows it has it; None where nobody does."""
    lately = sorted(ranks, key=lambda stream: (stream.rank, -stream.started))
    return next((each for stream in lately if (each := epoch_times.seconds(stream.counters)) is not None), None)


def _price(said: Prices, environment: Mapping[str, Any] | None) -> float | None:
    return prices.of(said, str((environment or {}).get("device") or ""))
