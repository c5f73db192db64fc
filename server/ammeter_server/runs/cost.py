"""Costs of a run: its ranks' time with their devices, at the devices' prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ammeter.counters import epoch_times
from ammeter_server.config import prices
from ammeter_server.config.prices import Prices
from ammeter_server.db import Row

HOUR_NS = 3600 * 10**9


def of_run(known: Prices, environment: Mapping[str, Any] | None, ranks: Sequence[Row[Any]]) -> float | None:
    """Returns the costs so far in dollars, with one device per rank.

    None if no price fits. ranks: streams of all their attempts.
    """
    price = _price(known, environment)
    return None if price is None else price * sum(map(occupied_ns, ranks)) / HOUR_NS


def per_epoch(known: Prices, environment: Mapping[str, Any] | None, ranks: Sequence[Row[Any]]) -> float | None:
    """Returns the dollars of one pass over the data; None if its duration is unknown.

    The duration comes from the lowest rank that knows it.
    """
    price, seconds = _price(known, environment), seconds_per_epoch(ranks)
    if price is None or seconds is None:
        return None
    return price * seconds * len({stream.rank for stream in ranks}) / 3600


def occupied_ns(stream: Row[Any]) -> int:
    """Returns the time for which a rank had its device, by the training host's clock.

    Late transmission therefore adds no costs. For a process that runs or was lost, the time ends with its last step, as
    its end is unknown or was recorded later.
    """
    died = stream.bye_reason in (None, "lost")
    until = stream.last_step_time if died else max(stream.bye.get("time") or 0, stream.last_step_time or 0)
    return max(0, (until or 0) - stream.started) if stream.started else 0


def seconds_per_epoch(ranks: Sequence[Row[Any]]) -> float | None:
    """Returns an epoch's duration from the lowest rank that knows it; else None."""
    newest_first = sorted(ranks, key=lambda stream: (stream.rank, -stream.started))
    return next(
        (seconds for stream in newest_first if (seconds := epoch_times.seconds(stream.counters)) is not None), None
    )


def _price(known: Prices, environment: Mapping[str, Any] | None) -> float | None:
    return prices.of(known, str((environment or {}).get("device") or ""))
