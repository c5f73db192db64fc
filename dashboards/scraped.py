"""The first panels of every board: whether the collector answers, else since when not."""

from __future__ import annotations

from dashboards.panels import LOW_ROWS, Figure
from dashboards.promql import COLLECTOR_JOB, FLEET_JOB, since_last_scrape, up

UP = (
    Figure(
        "Collector",
        "Whether Prometheus' last scrape of /metrics succeeded. Otherwise panels below are empty, which does not "
        "mean that all is well.",
        "none",
        [(f"max({up(FLEET_JOB)})", "collector")],
        missing="not scraped: there is no job ammeter",
        width=8,
        height=LOW_ROWS,
        words={"0": ("DOWN", "red"), "1": ("UP", "green")},
    ),
    Figure(
        "Since the last scrape",
        "Time since the last successful scrape of /metrics. All panels below are that old.",
        "s",
        [(since_last_scrape(FLEET_JOB), "scraped")],
        missing="no successful scrape in this time",
        width=8,
        height=LOW_ROWS,
        limits=((None, "green"), (60, "orange"), (120, "red")),
    ),
    Figure(
        "Responding collector processes",
        "Share of the scraped addresses of /metrics/self that responded to the last scrape.",
        "percentunit",
        [(f"avg({up(COLLECTOR_JOB)})", "responding")],
        missing="not scraped: there is no job ammeter-collector",
        width=8,
        height=LOW_ROWS,
        limits=((None, "red"), (0.01, "orange"), (1, "green")),
    ),
)
"""These panels query `up` only, so that they have data when nothing else has."""
