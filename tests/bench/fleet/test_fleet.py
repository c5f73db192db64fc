"""What a fleet needs follows from the measured costs, and its simulation loses no row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.collector.report import Ingested
from bench.collector.senders import IngestCost
from bench.collector.soak import SoakResult
from bench.common.paths import RESULTS
from bench.fleet import __main__ as fleet_program
from bench.fleet import costs as measured
from bench.fleet import report, scaling
from bench.fleet.costs import Costs, MissingFigureError
from bench.fleet.scaling import Assumptions, Fleet
from bench.fleet.simulation import Scenario, Simulation

COLLECTOR = RESULTS / "collector.json"
SHORT = Scenario(before=30.0, outage=100.0, after=30.0)
LIMITS = Assumptions()


def point(rows: int, requests: int, values: int, cpu: float) -> Ingested:
    return Ingested(rows, [IngestCost("ammeter", values, requests, cpu, cpu + 1e-7 * values, cpu, 2, 1, 3)])


def points(request: float, value: float) -> list[Ingested]:
    counts = ((100, 10, 1_000_000), (10, 100, 1_000_000), (1, 400, 400_000))
    return [point(rows, requests, values, request * requests + value * values) for rows, requests, values in counts]


COSTS = Costs(1e-3, 1e-8, 9e-8, 5e-3, 1.0, 1.0, 2e-4, 5e-3, tuple(points(1e-3, 1e-8)))


def test_the_fit_finds_the_cost_of_a_request_and_of_a_value() -> None:
    assert pytest.approx((1e-3, 2e-8)) == measured.fit(points(1e-3, 2e-8))


@pytest.mark.parametrize("unusable", [points(1e-3, 1e-8)[:1], points(-1e-4, 1e-6)])
def test_points_from_which_no_cost_follows_are_refused(unusable: list[Ingested]) -> None:
    with pytest.raises(MissingFigureError, match=r"two are needed|negative cost"):
        measured.fit(unusable)


def test_the_live_factor_makes_the_costs_those_of_the_soak() -> None:
    costs = measured.read(COLLECTOR)
    soak = Fleet(ranks=200, steps_per_second=10, ranks_per_page=50)
    share = float(json.loads(COLLECTOR.read_text())["soak"][0].partition(" % of one core")[0].split()[-1])
    assert pytest.approx(share / 100, rel=0.01) == scaling.need(soak, costs).cores


def without_collector(document: dict[str, Any]) -> None:
    document["taken"] = [load for load in document["taken"] if load["costs"][0]["name"] != "ammeter"]


@pytest.mark.parametrize(
    ("remove", "missing"),
    [
        (lambda document: document.pop("soak"), "no 'soak'"),
        (lambda document: document.update(soak=[]), "live streams"),
        (lambda document: document.update(asked=[]), "one column over 2,000 steps"),
        (lambda document: document["taken"][0]["costs"][0].pop("settled"), "settled"),
        (without_collector, "0 measured points"),
    ],
)
def test_a_missing_figure_is_named_with_the_remedy(
    tmp_path: Path, remove: Callable[[dict[str, Any]], object], missing: str
) -> None:
    document = json.loads(COLLECTOR.read_text())
    remove(document)
    (tmp_path / "collector.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit, match=rf"collector\.json.*{missing}.*run: python -m bench\.collector"):
        fleet_program.main(["--results", str(tmp_path / "collector.json")])


def test_the_figures_are_found_in_the_lines_that_a_soak_writes_today() -> None:
    soak = SoakResult(streams=2000, seconds=60, values=10**8, cpu=3.0, lags=[1.0, 2.0], resident=[2**20, 2**21])
    expected = {"streams": 2000, "values": 1.67, "percent": 5, "pages": 4, "mib": 2}
    assert expected == measured.soak_figures("\n".join(soak.lines))


@pytest.mark.parametrize(
    ("fleet", "steps", "requests"),
    [
        (Fleet(ranks=100), 1, 100),
        (Fleet(ranks=100, steps_per_second=10), 10, 100),
        (Fleet(ranks=100, steps_per_second=1000), 256, 1000 / 256 * 100),  # as many rows as a request has at most
        (Fleet(ranks=100, steps_per_second=0.1), 1, 50),  # heartbeats
        (Fleet(ranks=100, batch_seconds=10), 10, 10),
    ],
)
def test_requests_follow_from_the_intervals_of_the_shipper(fleet: Fleet, steps: float, requests: float) -> None:
    need = scaling.need(fleet, COSTS)
    assert steps == need.steps_per_request
    assert pytest.approx(requests) == need.requests


def test_a_larger_fleet_needs_several_collectors_and_then_several_databases() -> None:
    sizes = (10, 1_000, 100_000)
    found = [scaling.deployment(scaling.need(Fleet(ranks=ranks), COSTS), LIMITS) for ranks in sizes]
    assert ["SQLite", "PostgreSQL"] == [machines.database for machines in found[:2]]
    assert found[2].database.startswith("Citus")
    assert found[0].collectors < found[1].collectors < found[2].collectors
    assert found[0].price < found[1].price < found[2].price


def test_the_bottleneck_is_the_resource_with_the_largest_share() -> None:
    need = scaling.need(Fleet(ranks=100), COSTS)
    assert "CPU" == scaling.bottleneck(scaling.single(need, LIMITS))[0]
    small_disk = replace(LIMITS, sqlite_disk_gb=need.kept_gb / 2)
    name, share = scaling.bottleneck(scaling.single(need, small_disk))
    assert "disk space" == name
    assert pytest.approx(2) == share


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ranks", [20, 700, 3000])
def test_every_row_is_stored_once_also_where_the_collector_is_overloaded(ranks: int, seed: int) -> None:
    scenario = replace(SHORT, seed=seed)
    found = Simulation(Fleet(ranks=ranks), COSTS, scenario).run()
    assert ranks * 160 == found.made == found.stored
    assert 0 < found.drained
    assert (ranks == 3000) == (found.refused > 0)
    assert found == Simulation(Fleet(ranks=ranks), COSTS, scenario).run()


def test_a_simulated_collector_is_as_busy_as_computed_and_drains_faster_with_fewer_ranks() -> None:
    many, few = (Simulation(Fleet(ranks=ranks), COSTS, SHORT).run() for ranks in (600, 100))
    assert pytest.approx(600 * COSTS.batch_seconds(1200), abs=0.03) == many.busy
    assert few.drained < many.drained
    assert few.percentiles(10, 30)[2] < many.percentiles(10, 30)[2]


def test_a_fleet_of_nobody_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fleet_program.main(["--ranks", "0"])
    assert "--ranks is 0; use a number above 0" in capsys.readouterr().err


def test_the_result_file_is_computed_from_the_committed_costs() -> None:
    text = report.markdown(Fleet(), LIMITS, measured.read(COLLECTOR), Scenario(), "python -m bench.fleet --write")
    assert text == (RESULTS / "fleet.md").read_text(), "run: python -m bench.fleet --write"
