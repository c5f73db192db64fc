"""Limits of requests. Each has a name, which refusals contain and /metrics/self counts."""

from __future__ import annotations

import math
from typing import Any

from ammeter_server.http.problems import Problem
from ammeter_server.process import activity_log, self_metrics


def over(limit: str, status: int, detail: str, *, wait: float | None = None, **members: Any) -> Problem:
    """Counts and logs a refusal. Returns its problem, with the limit's name as member `limit`.

    Args:
        wait: Seconds after which a retry may succeed.
    """
    self_metrics.limited.labels(limit).inc()
    activity_log.refused("request.refused", f"limit={limit}", status=status, detail=detail)
    headers = None if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}
    return Problem(status, detail, headers=headers, limit=limit, **members)
