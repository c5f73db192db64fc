"""Addresses of a run in other tools: its Grafana board and its log."""

from __future__ import annotations

import time
from typing import Any

from ammeter_server.config.links import Links
from ammeter_server.db import Row
from ammeter_server.runs.ownership import JOB

HOUR_NS = 3600 * 10**9


def of_run(links: Links, run: Row[Any], host: str) -> dict[str, str]:
    """Returns `board` and `log`, those for which there is an address and the run has what the address needs."""
    values = {
        "run": run.id,
        "name": run.name,
        "project": run.project,
        "host": host,
        "job": str((run.environment or {}).get(JOB) or ""),
        "from": str(run.started // 10**6),
        "to": str((run.ended or _end_of_hour(time.time_ns())) // 10**6),
    }
    found = {"board": links.board(run.id, run.project), "log": links.log(values)}
    return {name: address for name, address in found.items() if address}


def _end_of_hour(now: int) -> int:
    """A time in the future that stays the same for a while, as does the address of a live run."""
    return (now // HOUR_NS + 1) * HOUR_NS
