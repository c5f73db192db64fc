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
    "Attempt",
    "Client",
    "ClientError",
    "CollectorTooOldError",
    "ComparedCurve",
    "Comparison",
    "Curve",
    "Event",
    "Incident",
    "NotACollectorError",
    "NotFoundError",
    "PinnedBaseline",
    "RefusedError",
    "Run",
    "TensorStat",
    "UnauthorizedError",
    "UnreachableError",
]
