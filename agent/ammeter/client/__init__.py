"""A client of the collector's API for programs, such as notebooks and scripts in CI.

Usage:

    from ammeter.client import Client
    for run in Client("http://127.0.0.1:8480").runs(state="running"):
        print(run.name, run.latest.get("loss"))
"""

from __future__ import annotations

from ammeter.client.client import Client
from ammeter.client.curves import Curve
from ammeter.client.errors import (
    ClientError,
    CollectorTooOldError,
    NotACollectorError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from ammeter.client.handling_resources import (
    AlertChannel,
    ChannelDelivery,
    ChannelTest,
    Delivery,
    Directive,
    GoodCheckpoint,
    IncidentContext,
    Reach,
    Related,
    RelatedRun,
    Sparklines,
    Weights,
)
from ammeter.client.resources import (
    Attempt,
    ComparedCurve,
    Comparison,
    Event,
    Incident,
    PinnedBaseline,
    Run,
    TensorStat,
)

__all__ = [
    "AlertChannel",
    "Attempt",
    "ChannelDelivery",
    "ChannelTest",
    "Client",
    "ClientError",
    "CollectorTooOldError",
    "ComparedCurve",
    "Comparison",
    "Curve",
    "Delivery",
    "Directive",
    "Event",
    "GoodCheckpoint",
    "Incident",
    "IncidentContext",
    "NotACollectorError",
    "NotFoundError",
    "PinnedBaseline",
    "Reach",
    "RefusedError",
    "Related",
    "RelatedRun",
    "Run",
    "Sparklines",
    "TensorStat",
    "UnauthorizedError",
    "UnreachableError",
    "Weights",
]
