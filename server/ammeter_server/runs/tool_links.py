"""Addresses of runs and incidents in other tools: Grafana board, log, and the form for a silence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ammeter_server.config.links import Links
from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import runs as query
from ammeter_server.incidents.runbook_text import alert_name
from ammeter_server.runs.ownership import JOB
from ammeter_server.runs.rank_totals import lead_of

HOUR_NS = 3600 * 10**9


class Place(NamedTuple):
    """Where an incident is: its run, stream and verdict."""

    run: str
    stream: str
    verdict: str


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


def of_incident(links: Links, run: Row[Any], host: str, verdict: str) -> dict[str, str]:
    """Returns the addresses of the run, and `silence` if there is an Alertmanager."""
    silence = links.silences({"alertname": alert_name(verdict), "run": run.id, "project": run.project})
    return of_run(links, run, host) | ({"silence": silence} if silence else {})


def of_incidents(connection: Connection, links: Links, places: Sequence[Place]) -> list[dict[str, str]]:
    """Returns the same for several incidents. Without any address, nothing is read."""
    if not (places and (links.grafana or links.alertmanager or links.logs)):
        return [{} for _ in places]
    ids = sorted({place.run for place in places})
    rows = query.with_ids(connection, ids)
    streams = query.streams_of(connection, ids) if "{host}" in links.logs else ()
    found = []
    for place in places:
        run = rows.get(place.run)  # none if it was deleted meanwhile
        lead = lead_of([stream for stream in streams if stream.run == place.run], place.stream)
        found.append(of_incident(links, run, lead.host if lead else "", place.verdict) if run else {})
    return found


def _end_of_hour(now: int) -> int:
    """A time in the future that stays the same for a while, as does the address of a live run."""
    return (now // HOUR_NS + 1) * HOUR_NS
