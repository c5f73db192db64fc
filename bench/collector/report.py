"""What was measured of the collector, as people read it: on the terminal, in bench/results/collector.md and .json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.agent.report import piped, processor
from bench.collector.ingest import Fed
from bench.collector.queries import ALONE, MEANWHILE, Asked, list_of, scrape_of

HEADINGS = (
    "stored in",
    "steps per request",
    "million values per second of CPU",
    "bytes per value on disk, at once",
    "when it was done",
)
DETAILS = (
    "stored in",
    "steps per request",
    "values",
    "requests",
    "CPU s",
    "with what it put off",
    "wall s",
    "bytes sent each",
)

LIST, SCRAPE = list_of(10_000), scrape_of(1_000)


@dataclass(frozen=True)
class Taken:
    """What one server took, so many steps to a request."""

    rows: int
    fed: Fed


@dataclass(frozen=True)
class Limit:
    """Something that has to hold, as it was found."""

    words: str
    wanted: float
    found: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    @property
    def told(self) -> str:
        bound = f"at {'most' if self.at_most else 'least'} {self.wanted:g}"
        return f"{self.words}: {self.found:.2f}, {bound}: {'holds' if self.holds else 'missed'}"


@dataclass
class Measured:
    """Everything. missing: what could not be measured here, and why."""

    taken: list[Taken] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    soak: list[str] = field(default_factory=list)
    seconds: float = 0.0
    load: float = 0.0

    def rate(self, name: str, rows: int) -> float:
        """Of one that was measured; 0 where it was not."""
        return next((each.fed.rate for each in self.taken if (each.fed.name, each.rows) == (name, rows)), 0.0)


def limits(measured: Measured) -> list[Limit]:
    """What has to hold of what was measured."""
    ours, theirs = measured.rate("ammeter", 100), measured.rate("victoria-metrics", 100)
    found = [
        Limit("million values per second of CPU, 100 steps to a request", 20.0, ours),
        Limit("the same, 1 step to a request", 1.0, measured.rate("ammeter", 1)),
    ]
    found += _in_time({each.what: each for each in measured.asked if each.name == "ammeter"})
    return found + ([Limit("times VictoriaMetrics' remote write", 5.0, ours / theirs)] if theirs else [])


def _in_time(asked: Mapping[str, Asked]) -> list[Limit]:
    """What answers may take, of those that were asked for."""
    p95 = {what: asked[what].p95 for what in (LIST, SCRAPE, ALONE, MEANWHILE) if what in asked}
    found = [
        Limit(f"ms of 95 in 100, {what}", wanted, p95[what], at_most=True)
        for what, wanted in ((LIST, 50.0), (SCRAPE, 300.0))
        if what in p95
    ]
    if {ALONE, MEANWHILE} <= p95.keys():
        more = p95[MEANWHILE] - p95[ALONE]
        found.append(Limit("ms that scrapes hold up a batch, of 95 in 100", 20.0, more, at_most=True))
    return found


def comparison(measured: Measured) -> list[tuple[str, ...]]:
    """The table people quote."""
    return [
        HEADINGS,
        *(
            (
                each.fed.name,
                str(each.rows),
                _figures(each.fed.rate),
                _share(each.fed.came, each),
                _share(each.fed.stored, each),
            )
            for each in measured.taken
        ),
    ]


def answers(measured: Measured) -> list[tuple[str, ...]]:
    """What was asked, whoever answered side by side: ms, and in brackets the 95th percentile."""
    names = list(dict.fromkeys(each.name for each in measured.asked))
    rows = list(dict.fromkeys(each.what for each in measured.asked))
    found = {(each.what, each.name): each.words for each in measured.asked}
    return [
        ("ms (95 %, largest)", *names),
        *((what, *(found.get((what, name), "–") for name in names)) for what in rows),
    ]


def shown(measured: Measured) -> list[str]:
    """For the terminal."""
    tables = [comparison(measured), answers(measured)] if measured.asked else [comparison(measured)]
    lines = ["  ".join(f"{cell:<30}" for cell in row).rstrip() for table in tables for row in (*table, ("",))]
    return [*lines, *measured.soak, *(f"left out: {each}" for each in measured.missing)]


def write(measured: Measured, folder: Path, command: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "collector.md").write_text(markdown(measured, command))
    plain = {"command": command, "where": where(), **msgspec.to_builtins(measured)}
    (folder / "collector.json").write_text(json.dumps(plain, indent=1) + "\n")


def markdown(measured: Measured, command: str) -> str:
    lines = ["# What collecting costs", "", *_story(measured, command), "", *piped(comparison(measured)), ""]
    lines += ["## What has to hold", "", *(f"- {each.told}" for each in limits(measured)), ""]
    if measured.asked:
        lines += ["## Answers", "", *_about_answers(), "", *piped(answers(measured)), ""]
    if measured.soak:
        lines += ["## Hours of live streams", "", *(f"- {each}" for each in measured.soak), ""]
    lines += ["## In full", "", *piped(_details(measured)), ""]
    lines += [f"- left out: {each}" for each in measured.missing]
    return "\n".join(lines).rstrip("\n") + "\n"


def where() -> str:
    return f"{processor()}, {os.cpu_count()} cores"


def _story(measured: Measured, command: str) -> list[str]:
    return [
        f"{where()}; load before: {measured.load:.1f}; {measured.seconds / 60:.1f} minutes; `{command}`.",
        "",
        "Eight ranks of 1,200 columns send 2,000 steps each (fewer where a request holds one step, and to MLflow), all"
        " at once, over HTTP into a server of its own; counted is the server's CPU time, all of its threads, until the"
        " last answer. Ammeter checks each batch, stores it in a transaction that is on disk before it is acknowledged,"
        " and asks all of its verdicts about it. The others store. Remote write gets as much per request as Ammeter"
        " does. A row per sample and MLflow have no server between: their CPU time is that of the process that stores."
        " Bytes are those of all files, Ammeter's with its log taken in: right after the last answer, and once what was"
        " put off was done; the time series databases were stopped for it. What is put off costs CPU as well: see the"
        " last table.",
    ]


def _about_answers() -> list[str]:
    return [
        "Milliseconds until the answer was read, in the middle and of 95 in 100. PromQL gives the samples as they are;"
        " Ammeter the same, or 2,000 points of longer curves with all extremes."
    ]


def _details(measured: Measured) -> list[tuple[str, ...]]:
    return [
        DETAILS,
        *(
            (
                fed.name,
                str(each.rows),
                f"{fed.values:,}",
                f"{fed.requests:,}",
                f"{fed.cpu:.2f}",
                f"{fed.settled:.2f}",
                f"{fed.wall:.1f}",
                f"{fed.sent / fed.values:.2f}" if fed.sent else "–",
            )
            for each in measured.taken
            for fed in (each.fed,)
        ),
    ]


def _share(size: int, of: Taken) -> str:
    """Of each value, where it is known."""
    return f"{size / of.fed.values:.2f}" if size else "–"


def _figures(rate: float) -> str:
    """Two of them."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
