"""What the collector's API returns to those who act on incidents, as docs/api.md describes it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ammeter.client.resources import Event, number
from ammeter.wire.decodable import decodable


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the weights.

    Attributes:
        state: poisoned, buffers, damaged, doubtful, safe, finite or unknown, as docs/api.md explains.
        step: of the run, at the last reading.
    """

    state: str = "unknown"
    step: int | None = None


class GoodCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint from before the fault; if the weights are safe, the newest of all.

    Attributes:
        missing: parts that a resumed run needs and that it lacks.
        verified: whether it was read back and found complete and finite.
        resume: the run's command with this checkpoint; None if the command has no option for one.
    """

    path: str
    step: int
    saved: datetime | None = None
    missing: list[str] = []
    verified: bool = False
    resume: str | None = None


@decodable
class IncidentContext(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an incident's run; None or empty if unknown.

    Attributes:
        now: what to do with the run: stop it or not, and what to continue from.
        dollars_per_hour: of the ranks that report now.
        host: of the rank that the incident names.
        job: the id of the scheduler's job.
        links: log, board and silence, where the collector's settings name their addresses.
    """

    weights: Weights
    run_state: str = ""
    now: str = ""
    checkpoint: GoodCheckpoint | None = None
    dollars_per_hour: float | None = None
    owner: str = ""
    host: str = ""
    job: str = ""
    commit: str = ""
    driver: str = ""
    command: str = ""
    links: dict[str, str | None] = {}


class RelatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run. open_incidents: whether it has any."""

    run: str
    name: str = ""
    project: str = ""
    state: str = ""
    started: datetime | None = None
    open_incidents: bool = False


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """Other runs with the same value.

    Attributes:
        by: verdict, host, commit or driver.
        runs: their number, at most 1000.
        broken: how many of them have an open incident.
        items: some of them, those with open incidents first.
    """

    by: str
    value: str
    runs: int
    broken: int
    items: list[RelatedRun]


@decodable
class Reach(msgspec.Struct, frozen=True):
    """Other runs that the cause of an incident may affect. `since`: when the incident opened."""

    since: datetime | None
    items: list[Related]


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification on a channel.

    Attributes:
        kind: opened, resolved or silenced.
        state: pending, sent, failed after the last attempt, or told: an Alertmanager receives it repeatedly.
        error: the last one of the receiver.
        due: when it is sent, if it still has to be.
    """

    kind: str = ""
    state: str = ""
    attempts: int = 0
    error: str | None = None
    created: datetime | None = None
    due: datetime | None = None
    sent: datetime | None = None


class Delivery(Notification, frozen=True, kw_only=True):
    """A notification of an incident. `channel`: its name, as in channels()."""

    channel: str


@decodable
class Deliveries(msgspec.Struct):
    """The answer of the API about the notifications of an incident."""

    items: list[Delivery]


class ChannelDelivery(Notification, frozen=True, kw_only=True):
    """A notification on one channel, with its incident."""

    incident: str
    run: str
    run_name: str = ""
    verdict: str = ""
    title: str = ""
    severity: str = ""


class AlertChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel of notifications.

    Attributes:
        stateful: whether it is an Alertmanager, which receives an alert repeatedly.
        receives: conditions of its incidents; empty for all.
        deliveries: its newest notifications, newest first.
    """

    name: str
    stateful: bool = False
    receives: list[str] = []
    deliveries: list[ChannelDelivery] = []


@decodable
class AlertChannels(msgspec.Struct):
    """The answer of the API about channels."""

    items: list[AlertChannel]


@decodable
class ChannelTest(msgspec.Struct, frozen=True):
    """The result of a test. error: the reason of the receiver or the connection; None if the message was accepted."""

    channel: str
    error: str | None


@decodable
class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """A reading that was asked for.

    Attributes:
        ranks: number of processes that it is for.
        delivered_to: how many of them have received it.
        delivered: when the first of them did; None before.
        asked_by: the name of a token.
        answers: `directive.done` or `directive.refused` of each process that has answered.
    """

    id: str
    arm: str
    steps: int
    asked_by: str = ""
    created: datetime | None = None
    ranks: int = 0
    delivered_to: int = 0
    delivered: datetime | None = None
    answers: list[Event] = []


@decodable
class Directives(msgspec.Struct):
    """The answer of the API about directives."""

    items: list[Directive]


class Sparklines(msgspec.Struct, kw_only=True):
    """Small curves of the lowest rank in the newest attempt of a run.

    Attributes:
        series: name -> values at evenly spaced steps; None where nothing was measured.
    """

    run: str
    series: dict[str, list[float | str | None]]

    def __post_init__(self) -> None:
        self.series = {name: list(map(number, values)) for name, values in self.series.items()}


@decodable
class SparklineList(msgspec.Struct):
    """The answer of the API about small curves."""

    items: list[Sparklines]
