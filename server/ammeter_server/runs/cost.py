"""Costs of a run: its ranks' time with their devices, at the devices' prices, and the part that was repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ammeter.counters import epoch_times
from ammeter_server.config import prices
from ammeter_server.config.prices import Prices
from ammeter_server.db import Row

HOUR_NS = 3600 * 10**9


class PlacedLife(Protocol):
    """An attempt on the axis of its run, as curves/run_axis.py has it."""

    @property
    def stream(self) -> str: ...
    @property
    def first_step(self) -> int: ...
    @property
    def last_step(self) -> int: ...
    @property
    def replaced_from(self) -> int | None: ...


def of_run(
    known: Prices,
    environment: Mapping[str, Any] | None,
    ranks: Sequence[Row[Any]],
    tags: Mapping[str, Any] | None = None,
) -> float | None:
    """Returns the costs so far in dollars, with one device per rank.

    None if no price fits. ranks: streams of all their attempts.
    """
    price = _price(known, environment, tags)
    return None if price is None else price * sum(map(occupied_ns, ranks)) / HOUR_NS


def per_hour(
    known: Prices,
    environment: Mapping[str, Any] | None,
    devices: int,
    tags: Mapping[str, Any] | None = None,
) -> float | None:
    """Returns what this many devices of the run cost in an hour, in dollars; None if no price fits."""
    price = _price(known, environment, tags)
    return None if price is None else price * devices


def per_epoch(
    known: Prices,
    environment: Mapping[str, Any] | None,
    ranks: Sequence[Row[Any]],
    tags: Mapping[str, Any] | None = None,
) -> float | None:
    """Returns the dollars of one pass over the data; None if its duration is unknown.

    The duration comes from the lowest rank that knows it.
    """
    price, seconds = _price(known, environment, tags), seconds_per_epoch(ranks)
    if price is None or seconds is None:
        return None
    return price * seconds * len({stream.rank for stream in ranks}) / 3600


def replaced_steps(lives: Iterable[PlacedLife]) -> int:
    """Returns the steps that a later attempt repeated, because the checkpoint that it loaded was older."""
    return sum(map(_replaced_steps, lives))


def of_replaced_steps(
    known: Prices,
    environment: Mapping[str, Any] | None,
    ranks: Sequence[Row[Any]],
    lives: Iterable[PlacedLife],
    tags: Mapping[str, Any] | None = None,
) -> float | None:
    """Returns the dollars of the repeated steps; None if no price fits.

    The time of an attempt of the lowest rank is divided evenly over its steps, and counts for each rank.
    """
    price = _price(known, environment, tags)
    if price is None:
        return None
    occupied = {stream.id: occupied_ns(stream) for stream in ranks}
    wasted_ns = sum(
        occupied.get(life.stream, 0) * _replaced_steps(life) / (life.last_step - life.first_step + 1)
        for life in lives
        if life.last_step >= life.first_step
    )
    return price * wasted_ns * len({stream.rank for stream in ranks}) / HOUR_NS


def _replaced_steps(life: PlacedLife) -> int:
    if life.replaced_from is None:
        return 0
    return max(0, life.last_step + 1 - max(life.first_step, life.replaced_from))


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


def _price(known: Prices, environment: Mapping[str, Any] | None, tags: Mapping[str, Any] | None) -> float | None:
    return prices.of(known, str((environment or {}).get("device") or ""), tags)
