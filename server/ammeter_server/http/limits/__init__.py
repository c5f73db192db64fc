"""Every limit has a name: who runs into one is told it, and /metrics/self counts it."""

from __future__ import annotations

import math
from typing import Any

from ammeter_server.http.problems import Problem
from ammeter_server.process import activity_log, self_metrics


def over(limit: str, status: int, detail: str, *, wait: float | None = None, **members: Any) -> Problem:
    """The problem of a request that a limit refuses, with the limit's name as its member `limit`.

    wait: seconds after which asking again may help.
    """
    self_metrics.limited.labels(limit).inc()
    activity_log.refused("request.refused", f"limit={limit}", status=status, detail=detail)
    headers = None if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}
    return Problem(status, detail, headers=headers, limit=limit, **members)
