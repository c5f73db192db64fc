"""The first panels of every board: whether the collector answers, else since when not."""

from __future__ import annotations

from dashboards.panels import LOW, Figure
from dashboards.promql import COLLECTOR_JOB, FLEET_JOB, since_last_scrape, up

UP = (
    Figure(
        "Collector",
        "Whether Prometheus' last scrape of /metrics worked. While it does not, nothing below is known: panels are "
        "empty, and an empty panel is no good news.",
        "none",
        [(f"max({up(FLEET_JOB)})", "collector")],
        missing="nobody scrapes it: no job called ammeter",
        width=8,
        height=LOW,
        words={"0": ("DOWN", "red"), "1": ("answers", "green")},
    ),
    Figure(
        "Since the last scrape",
        "Time since a scrape of /metrics last worked. Everything below is as old as that.",
        "s",
        [(since_last_scrape(FLEET_JOB), "scraped")],
        missing="no scrape worked in this time",
        width=8,
        height=LOW,
        limits=((None, "green"), (60, "orange"), (120, "red")),
    ),
    Figure(
        "Collector processes that answer",
        "Addresses of /metrics/self that answered the last scrape, of all that are scraped.",
        "percentunit",
        [(f"avg({up(COLLECTOR_JOB)})", "answer")],
        missing="nobody scrapes them: no job called ammeter-collector",
        width=8,
        height=LOW,
        limits=((None, "red"), (0.01, "orange"), (1, "green")),
    ),
)
"""These panels query `up` only, so that they have data when nothing else has."""
