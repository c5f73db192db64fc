"""All that a collector answers about the runs it has, and what of it another one lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.compat.processes import Collector

RUN = "/api/v1/runs/{run}"


def everything(collector: Collector, runs: list[str]) -> dict[str, Any]:
    """Path -> answer, for these runs and the fleet."""
    found: dict[str, Any] = {"/metrics": collector.metrics(), "/api/v1/runs": collector.items("/api/v1/runs")}
    found["/api/v1/incidents"] = collector.items("/api/v1/incidents")
    for incident in found["/api/v1/incidents"]:
        for path in (f"/api/v1/incidents/{incident['id']}", f"/api/v1/incidents/{incident['id']}/deliveries"):
            found[path] = collector.ask(path)
    for run in runs:
        base = RUN.format(run=run)
        found[base] = collector.ask(base)
        for path in ("events", "incidents"):
            found[f"{base}/{path}"] = collector.items(f"{base}/{path}")
        names = quote(",".join(sorted(found[base]["latest"])))
        cells = f"{base}/tensors/matrix?stat=grad.norm&cells=50"
        for path in (f"{base}/series?names={names}", f"{base}/tensors", f"{base}/spectrum", cells):
            found[path] = collector.ask(path)
    for run, baseline in ((run, baseline) for run in runs for baseline in runs if run != baseline):
        path = f"{RUN.format(run=run)}/compare/{baseline}"
        found[path] = collector.ask(path)
    return found


def lacking(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Where `after` has not what `before` has: names may be added, values and list items may not change."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name == "next_page_token":
                continue
            if name in after:
                yield from lacking(value, after[name], f"{at} {name}")
            else:
                yield f"{at}: there is no {name}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lacking(one, other, f"{at} [{number}]")
    elif before != after:
        yield f"{at}: {str(before)[:200]} is now {str(after)[:200]}"
