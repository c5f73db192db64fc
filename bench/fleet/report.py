"""Presents what a fleet needs: bench/results/fleet.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from bench.common.tables import Row, markdown_table
from bench.fleet import scaling
from bench.fleet.costs import Costs
from bench.fleet.scaling import Assumptions, Fleet, Shares
from bench.fleet.simulation import Scenario, Simulation

SIZES = (10, 100, 1_000, 10_000, 100_000)
SETTLED_SECONDS = 20.0
"""Begin of a simulation, which is left out of the waits."""

SIZE_HEADINGS = """requests/s | million values/s | cores | received, MB/s | disk, GB a day | disk kept, TB \
| first limit of one collector | collectors | database | a month"""
SIMULATION_HEADINGS = """batching interval, s | collectors | busy, formula | simulated | wait, ms (50, 95, 99 %) \
| wait after the outage, s | refused and sent again | backlog stored after, s"""
RESIDUAL_HEADINGS = "steps in a request | CPU, s | fitted | deferred work, s | fitted"


def markdown(fleet: Fleet, limits: Assumptions, costs: Costs, scenario: Scenario, command: str) -> str:
    need = scaling.need(fleet, costs)
    sections: dict[str, Sequence[Row]] = {
        "What the fleet needs": _figures("need", vars(need)),
        "Ranks at which one collector with SQLite is at its limit": _limits(fleet, scaling.single(need, limits)),
        "Ranks at which one PostgreSQL server is at its limit": _limits(fleet, scaling.database(need, limits)),
        "What helps": sizes_table("change", _changes(fleet), limits, costs),
        f"Simulation, with an outage of {scenario.outage:g} s": _simulations(fleet, limits, costs, scenario),
        "Measured costs": _figures("cost", {name: cost for name, cost in vars(costs).items() if name != "points"}),
        "Residuals of the fit": _residuals(costs),
        "The fleet": _figures("parameter", vars(fleet)),
        "Assumptions": _figures("assumption", vars(limits)),
    }
    lines = ["# A fleet of ranks, computed", "", f"`{command}`", ""]
    lines += ["Computed from the costs in [collector.md](collector.md); nothing was measured at these sizes."]
    lines += ["[The page on scaling](../../docs/scaling.md) has the formulas.", ""]
    lines += markdown_table(sizes_table("ranks", {f"{n:,}": replace(fleet, ranks=n) for n in SIZES}, limits, costs))
    for heading, rows in sections.items():
        lines += ["", f"## {heading}", "", *markdown_table(rows)]
    return "\n".join(lines) + "\n"


def sizes_table(first: str, fleets: Mapping[str, Fleet], limits: Assumptions, costs: Costs) -> list[Row]:
    rows: list[Row] = [(first, *_cells(SIZE_HEADINGS))]
    for label, fleet in fleets.items():
        need = scaling.need(fleet, costs)
        name, share = scaling.bottleneck(scaling.single(need, limits))
        machines = scaling.deployment(need, limits)
        figures = (need.requests, need.values / 1e6, need.cores, need.received_mb, need.disk_gb, need.kept_gb / 1000)
        limit = f"{name}: {_number(100 * share)} %"
        end = (f"{machines.collectors:,}", machines.database, f"${_number(machines.price)}")
        rows.append((label, *map(_number, figures), limit, *end))
    return rows


def _changes(fleet: Fleet) -> dict[str, Fleet]:
    """The fleet, and the same with one thing changed."""
    return {
        "none": fleet,
        "batching interval times ten": replace(fleet, batch_seconds=10 * fleet.batch_seconds),
        "half of the columns": replace(fleet, columns=ceil(fleet.columns / 2)),
        "a tenth of the values, by sampling": replace(fleet, share_read=fleet.share_read / 10),
        "a quarter of the retention": replace(fleet, keep_days=fleet.keep_days / 4),
    }


def _limits(fleet: Fleet, shares: Shares) -> list[Row]:
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return [("resource", "ranks"), *((name, f"{fleet.ranks / share:,.0f}") for name, share in ordered)]


def _simulations(fleet: Fleet, limits: Assumptions, costs: Costs, scenario: Scenario) -> list[Row]:
    slower = replace(fleet, batch_seconds=10 * fleet.batch_seconds)
    count, fewer = (scaling.deployment(scaling.need(case, costs), limits).collectors for case in (fleet, slower))
    rows: list[Row] = [_cells(SIMULATION_HEADINGS)]
    for case, collectors in ((fleet, count), (fleet, 2 * count), (fleet, ceil(count / 2)), (slower, fewer)):
        ranks = replace(case, ranks=ceil(case.ranks / collectors))
        found, back = Simulation(ranks, costs, scenario).run(), scenario.before + scenario.outage
        before = ", ".join(f"{1000 * wait:.0f}" for wait in found.percentiles(SETTLED_SECONDS, scenario.before))
        after = ", ".join(f"{wait:.1f}" for wait in found.percentiles(back, back + scenario.after))
        need = scaling.need(ranks, costs)
        formula = costs.live_factor * (need.ingest_cores + need.compaction_cores)
        busy = [f"{100 * share:.0f} %" for share in (formula, found.busy)]
        refused = f"{found.refused:,} of {len(found.waits) + found.refused:,}"
        first = (f"{case.batch_seconds:g}", f"{collectors:,}")
        rows.append((*first, *busy, before, after, refused, f"{found.drained:.0f}"))
    return rows


def _residuals(costs: Costs) -> list[Row]:
    rows: list[Row] = [_cells(RESIDUAL_HEADINGS)]
    for point in costs.points:
        fed, deferred = point.median, point.median.settled - point.median.cpu
        fitted = costs.request_seconds * fed.requests + costs.value_seconds * fed.values
        compaction = costs.compaction_seconds * fed.values
        measured = ((fed.cpu, fitted), (deferred, compaction))
        rows.append((str(point.rows), *(cell for pair in measured for cell in (f"{pair[0]:.2f}", _off(*pair)))))
    return rows


def _off(measured: float, fitted: float) -> str:
    return f"{fitted:.2f} ({100 * (fitted / measured - 1):+.0f} %)" if measured else f"{fitted:.2f}"


def _figures(heading: str, figures: Mapping[str, Any]) -> list[Row]:
    return [(heading, "figure"), *((_words(name), _number(value)) for name, value in figures.items())]


def _cells(headings: str) -> Row:
    return tuple(headings.split(" | "))


def _words(name: str) -> str:
    return name.replace("_gb", ", GB").replace("_mb", ", MB").replace("_", " ")


def _number(value: float) -> str:
    """A number with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
