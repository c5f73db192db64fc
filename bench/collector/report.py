"""Presents the results: lines for the terminal, and bench/results/collector.md and collector.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, median_low

import msgspec

from bench.collector.latencies import BATCH_ALONE, BATCH_DURING_SCRAPES, Latency, across, list_label, scrape_label
from bench.collector.senders import IngestCost
from bench.common.machine import cpu_and_cores
from bench.common.tables import Row, markdown_table

HEADINGS = (
    "stored in",
    "steps per request",
    "million values per second of CPU",
    "bytes per value on disk, at once",
    "after deferred work",
)
DETAIL_HEADINGS = (
    "stored in",
    "steps per request",
    "values",
    "requests",
    "CPU s",
    "with deferred work",
    "wall s",
    "bytes sent each",
)

LATENCY_HEADINGS = ("request", "server", "median, ms", "95th percentile, ms", "largest")

LIST, SCRAPE = list_label(10_000), scrape_label(1_000)


@dataclass(frozen=True)
class Ingested:
    """The costs of one store.

    Attributes:
        rows: Steps per request.
        costs: One for each repeat.
    """

    rows: int
    costs: list[IngestCost]

    @property
    def name(self) -> str:
        return self.costs[0].name

    @property
    def median(self) -> IngestCost:
        """The repeat with the median rate."""
        middle = median_low(cost.rate for cost in self.costs)
        return next(cost for cost in self.costs if cost.rate == middle)

    @property
    def rates(self) -> str:
        """The median rate, and in brackets the lowest and the highest."""
        rates = [cost.rate for cost in self.costs]
        return f"{_two_digits(self.median.rate)} ({_two_digits(min(rates))} to {_two_digits(max(rates))})"


@dataclass(frozen=True)
class Limit:
    """A required figure and its measured value."""

    name: str
    bound: float
    measured: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    def __str__(self) -> str:
        bound = f"at {'most' if self.at_most else 'least'} {self.bound:g}"
        return f"{self.name}: {self.measured:.2f}, {bound}: {'met' if self.is_met else 'missed'}"


@dataclass
class Results:
    """All results.

    Attributes:
        latencies: One for each request, server and turn.
        missing: Stores that could not be measured, with the reason.
        soak: Lines of the last soak.
        seconds: Duration of the measurement.
        load: Load of the machine before the measurement.
        repeats: Turns, each of which measured every store.
        times: Requests whose response times were measured, in one turn.
    """

    ingested: list[Ingested] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    soak: list[str] = field(default_factory=list)
    seconds: float = 0.0
    load: float = 0.0
    repeats: int = 1
    times: int = 40

    def merge(self, turn: Results) -> None:
        """Adds one turn of a store."""
        for ingested in turn.ingested:
            for cost in ingested.costs:
                self.add(ingested.rows, cost)
        self.latencies += turn.latencies

    def add(self, rows: int, cost: IngestCost) -> None:
        """Adds a repeat of one store. rows: steps per request."""
        known = self._of(cost.name, rows)
        if known is None:
            self.ingested.append(Ingested(rows, [cost]))
        else:
            known.costs.append(cost)

    def rate(self, name: str, rows: int) -> float:
        """The median of one store's values per second of CPU; 0 where it was not measured."""
        known = self._of(name, rows)
        return known.median.rate if known else 0.0

    def latency(self, what: str, name: str = "ammeter") -> Latency:
        """The medians of all turns of a request. Raises KeyError for one that was not measured."""
        return across(self.turns()[what, name])

    def turns(self) -> dict[tuple[str, str], list[Latency]]:
        """(request, server) -> the response times of each turn."""
        found: dict[tuple[str, str], list[Latency]] = {}
        for latency in self.latencies:
            found.setdefault((latency.what, latency.name), []).append(latency)
        return found

    def _of(self, name: str, rows: int) -> Ingested | None:
        return next((known for known in self.ingested if (known.name, known.rows) == (name, rows)), None)


def limits(results: Results) -> list[Limit]:
    ours, victoria = results.rate("ammeter", 100), results.rate("victoria-metrics", 100)
    found = [
        Limit("million values per second of CPU, 100 steps to a request", 20.0, ours),
        Limit("the same, 1 step to a request", 1.0, results.rate("ammeter", 1)),
    ]
    found += _latency_limits(results)
    return found + ([Limit("times VictoriaMetrics' remote write", 5.0, ours / victoria)] if victoria else [])


def _latency_limits(results: Results) -> list[Limit]:
    """Limits of the response times that were measured."""
    p95 = {what: [turn.p95 for turn in turns] for (what, name), turns in results.turns().items() if name == "ammeter"}
    found = [
        Limit(f"95th percentile in ms, {what}", bound, median(p95[what]), at_most=True)
        for what, bound in ((LIST, 50.0), (SCRAPE, 300.0))
        if what in p95
    ]
    if {BATCH_ALONE, BATCH_DURING_SCRAPES} <= p95.keys():
        more = median(during - alone for during, alone in zip(p95[BATCH_DURING_SCRAPES], p95[BATCH_ALONE], strict=True))
        found.append(Limit("delay of a batch by scrapes, 95th percentile in ms", 20.0, more, at_most=True))
    return found


def comparison(results: Results) -> list[Row]:
    """The main table."""
    return [
        HEADINGS,
        *(
            (
                ingested.name,
                str(ingested.rows),
                ingested.rates,
                _bytes_per_value(ingested.median.came, ingested),
                _bytes_per_value(ingested.median.stored, ingested),
            )
            for ingested in results.ingested
        ),
    ]


def latency_table(results: Results) -> list[Row]:
    """Response times of each request and server: medians of the turns, with the lowest and the highest turn."""
    turns = results.turns()
    requests = list(dict.fromkeys(what for what, _ in turns))
    return [
        LATENCY_HEADINGS,
        *(
            (
                what,
                name,
                _spread([turn.median for turn in measured]),
                _spread([turn.p95 for turn in measured]),
                f"{max(turn.most for turn in measured):.1f}",
            )
            for (what, name), measured in sorted(turns.items(), key=lambda item: requests.index(item[0][0]))
        ),
    ]


def terminal_lines(results: Results) -> list[str]:
    tables = [comparison(results), latency_table(results)] if results.latencies else [comparison(results)]
    lines = ["  ".join(f"{cell:<30}" for cell in row).rstrip() for table in tables for row in (*table, ("",))]
    return [*lines, *results.soak, *(f"left out: {missing}" for missing in results.missing)]


def write(results: Results, folder: Path, command: str) -> None:
    """Writes collector.md and collector.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "collector.md").write_text(markdown(results, command))
    fields = msgspec.to_builtins(results)
    fields = {JSON_NAMES.get(name, name): value for name, value in fields.items()}
    document = {"command": command, "where": cpu_and_cores(), **fields}
    (folder / "collector.json").write_text(json.dumps(document, indent=1) + "\n")


JSON_NAMES = {"ingested": "taken", "latencies": "asked"}
"""Names in collector.json, which are older than those of the fields."""


def markdown(results: Results, command: str) -> str:
    lines = ["# The cost of collecting", "", *_method(results, command), "", *markdown_table(comparison(results)), ""]
    lines += ["## Limits", "", *(f"- {limit}" for limit in limits(results)), ""]
    if results.latencies:
        lines += ["## Response times", "", *_about_latencies(results), "", *markdown_table(latency_table(results)), ""]
    if results.soak:
        lines += ["## Live streams for a while", "", *(f"- {line}" for line in results.soak), ""]
    lines += ["## Details", "", *markdown_table(_details(results)), ""]
    lines += [f"- left out: {missing}" for missing in results.missing]
    return "\n".join(lines).rstrip("\n") + "\n"


def _method(results: Results, command: str) -> list[str]:
    return [
        f"{cpu_and_cores()}; load before: {results.load:.1f}; {results.seconds / 60:.1f} minutes; `{command}`.",
        "",
        "Eight ranks of 1,200 columns send 2,000 steps each (fewer where a request holds one step, and to MLflow), all"
        " at once, by HTTP to a server of its own. The CPU time is that of all threads of the server, until the last"
        " response. Ammeter checks each batch, commits it to disk before it acknowledges it, and evaluates all its"
        " verdicts. The others only store. Remote write carries as much per request as Ammeter does. The row per sample"
        " and MLflow have no server: their CPU time is that of the storing process. Bytes are those of all files,"
        " including SQLite's log: right after the last response, and after deferred work. The time series databases"
        " were stopped before their files were counted. Deferred work costs CPU as well: see the last table.",
        "",
        f"Each store was measured in {results.repeats} turns with the others, or in fewer where one failed, each time"
        " with an empty database. The rate is the median, and in brackets the lowest and the highest; everything else"
        " in the first and in the last table is of the turn with the median rate. A busy collector evaluates rows up to"
        " five seconds after it stored them, but the final record of a stream waits for all its verdicts, so all of"
        " them are in this CPU time.",
    ]


def _about_latencies(results: Results) -> list[str]:
    return [
        f"Milliseconds until the response was read, in each turn of {results.times} requests,"
        f" {5 * results.times} for the list, and as many batches as fit into {results.times / 4:g} seconds. The median"
        " and the 95th percentile are the medians of the turns, with the lowest and the highest turn in brackets; the"
        " largest is that of all requests. The limits above are for the median of the turns. PromQL returns the samples"
        " unchanged; Ammeter does too, or 2,000 points of longer curves with all extremes."
    ]


def _details(results: Results) -> list[Row]:
    return [
        DETAIL_HEADINGS,
        *(
            (
                cost.name,
                str(ingested.rows),
                f"{cost.values:,}",
                f"{cost.requests:,}",
                f"{cost.cpu:.2f}",
                f"{cost.settled:.2f}",
                f"{cost.wall:.1f}",
                f"{cost.sent / cost.values:.2f}" if cost.sent else "–",
            )
            for ingested in results.ingested
            for cost in (ingested.median,)
        ),
    ]


def _bytes_per_value(size: int, ingested: Ingested) -> str:
    """Bytes per value, or a dash where they are unknown."""
    return f"{size / ingested.median.values:.2f}" if size else "–"


def _spread(values: Sequence[float]) -> str:
    """The median, and in brackets the lowest and the highest."""
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _two_digits(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
