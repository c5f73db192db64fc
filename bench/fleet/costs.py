"""Reads bench/results/collector.json, and fits the cost of a request and of a value to it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.collector.latencies import scrape_label
from bench.collector.report import JSON_NAMES, Ingested, Results
from bench.collector.soak import BATCH_SECONDS

STORE, CURVE, SCRAPED_RUNS = "ammeter", "one column over 2,000 steps", 1_000
SOAK = {
    "streams": r"([\d,]+) live streams",
    "values": r"([\d.]+) million values a second",
    "percent": r"([\d.]+) % of one core",
    "pages": r"(\d+) open pages",
    "mib": r"([\d.]+) MiB at most",
}
"""Figures in the lines of the soak."""

REMEDY = "run: python -m bench.collector --soak 10 --write; make bench-collector ARGS=--write"


class MissingFigureError(Exception):
    """The result file lacks a figure."""


@dataclass(frozen=True)
class Costs:
    """Measured costs of one collector with SQLite; seconds are those of CPU.

    Attributes:
        request_seconds, value_seconds: Receiving, checking, judging and storing, fitted to the measured points.
        compaction_seconds: Deferred work for a value.
        page_seconds: One reading of a curve by an open page.
        live_factor: CPU of the soak as a multiple of what these costs predict for it.
        stream_mb: Memory of the process in the soak, divided by its streams.
        scrape_seconds, scrape_mb: Of a live run.
        points: The measured divisions of a stream into requests, the largest requests first.
    """

    request_seconds: float
    value_seconds: float
    compaction_seconds: float
    page_seconds: float
    live_factor: float
    stream_mb: float
    scrape_seconds: float
    scrape_mb: float
    points: tuple[Ingested, ...]

    def batch_seconds(self, values: float) -> float:
        """CPU of a live batch with so many values, its compaction included."""
        return self.live_factor * (self.request_seconds + (self.value_seconds + self.compaction_seconds) * values)

    def nearest(self, steps: float) -> Ingested:
        """The measured point with as many steps per request, or the next smaller one."""
        return next((point for point in self.points if point.rows <= steps), self.points[-1])


def read(path: Path) -> Costs:
    """Reads the costs from a result file. Raises MissingFigureError if it lacks a figure."""
    try:
        document = json.loads(path.read_text())
        fields = {name: document[JSON_NAMES.get(name, name)] for name in ("ingested", "latencies", "soak")}
        return costs(msgspec.convert(fields, Results))
    except (OSError, ValueError, KeyError, MissingFigureError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise MissingFigureError(f"{path}: {reason}; {REMEDY}") from error


def costs(results: Results) -> Costs:
    points = sorted((point for point in results.ingested if point.name == STORE), key=lambda point: -point.rows)
    request, value = fit(points)
    repeats = [point.median for point in points]
    compaction = sum(fed.settled - fed.cpu for fed in repeats) / sum(fed.values for fed in repeats)
    page, scrape = results.latency(CURVE).median / 1000, results.latency(scrape_label(SCRAPED_RUNS))
    soak = soak_figures("\n".join(results.soak))
    predicted = (request * soak["streams"] + page * soak["pages"]) / BATCH_SECONDS
    predicted += (value + compaction) * 1e6 * soak["values"]
    factor, memory = soak["percent"] / 100 / predicted, soak["mib"] * 2**20 / 1e6 / soak["streams"]
    scrape_costs = scrape.p95 / 1000 / SCRAPED_RUNS, scrape.size / 1e6 / SCRAPED_RUNS
    return Costs(request, value, compaction, page, factor, memory, *scrape_costs, tuple(points))


def fit(points: Sequence[Ingested]) -> tuple[float, float]:
    """CPU seconds per request and per value, with the least sum of squared relative residuals."""
    if len(points) < 2:
        raise MissingFigureError(f"it has {len(points)} measured points of {STORE}; two are needed")
    counts = np.array([(point.median.requests, point.median.values) for point in points], dtype=float)
    cpu = np.array([point.median.cpu for point in points])
    found, *_ = np.linalg.lstsq(counts / cpu[:, None], np.ones(len(points)), rcond=None)
    if found.min() < 0:
        raise MissingFigureError(f"its points give a negative cost: {found[0]:.3g} s and {found[1]:.3g} s")
    return float(found[0]), float(found[1])


def soak_figures(text: str) -> dict[str, float]:
    """The figures in the lines of a soak."""
    found = {name: re.search(pattern, text) for name, pattern in SOAK.items()}
    missing = [SOAK[name] for name, match in found.items() if match is None]
    if missing:
        raise MissingFigureError(f"its soak has no {', no '.join(missing)}")
    return {name: float(match[1].replace(",", "")) for name, match in found.items() if match}
