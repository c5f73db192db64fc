"""A plan at its smallest, from real servers to result files, and the limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.collector import __main__ as collector
from bench.collector import report, runner, senders, servers
from bench.collector.latencies import BATCH_ALONE, BATCH_DURING_SCRAPES, Latency
from bench.collector.report import Ingested, Results
from bench.collector.runner import Plan
from bench.collector.senders import IngestCost
from bench.collector.servers import MissingError
from bench.common import readme

TINY = Plan(2, ((10, 20), (1, 2)), ((10, 20),), 20, 1, 2000, 3, 2, 3, repeats=2)


def test_results_are_written_as_tables_and_json_and_the_readme_reads_the_first_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "IDLE_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(senders, "MAX_IDLE_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(servers, "_program_path", missing)
    results = runner.measure(TINY, ["ammeter", "victoria", "prometheus"])
    assert ["victoria-metrics: there is none", "prometheus: there is none"] == results.missing
    assert [("ammeter", 10, 2 * 20 * 1214), ("ammeter", 1, 2 * 2 * 1214)] == [
        (ingested.name, ingested.rows, ingested.median.values) for ingested in results.ingested
    ]
    assert [2, 2] == [len(ingested.costs) for ingested in results.ingested]
    report.write(results, tmp_path, "make bench-collector")
    assert 4 == len(readme.table(tmp_path / "collector.md").splitlines())
    text = (tmp_path / "collector.md").read_text()
    assert {2} == {len(turns) for turns in results.turns().values()}
    for what in ("200 columns over 20 steps", "one column over 2,000 steps", "/metrics with 2 live runs"):
        assert f"| {what} |" in text
    assert [10, 1] == [load["rows"] for load in json.loads((tmp_path / "collector.json").read_text())["taken"]]


def missing(name: str) -> str:
    raise MissingError("there is none")


def test_a_missed_limit_is_reported() -> None:
    cost = IngestCost("ammeter", 30_000_000, 1, 1.0, 1.0, 1.0, 1, 1, 1)
    results = Results([Ingested(100, [cost]), Ingested(1, [replace(cost, values=999_999)])])
    assert [True, False] == [limit.is_met for limit in report.limits(results)]
    results.add(100, replace(cost, name="victoria-metrics", values=6_100_000))
    *_, times = report.limits(results)
    assert "times VictoriaMetrics' remote write: 4.92, at least 5: missed" == str(times)


def test_the_rate_is_the_median_of_the_repeats_and_all_other_figures_are_of_that_repeat() -> None:
    results, cost = Results(), IngestCost("ammeter", 30_000_000, 1, 1.0, 1.0, 1.0, 30_000_000, 0, 1)
    for cpu, stored in ((4.0, 4), (1.0, 1), (2.0, 2)):
        results.add(100, replace(cost, cpu=cpu, stored=stored * 10**7))
    (_, row) = report.comparison(results)
    assert ("ammeter", "100", "15 (7.5 to 30)", "1.00", "0.67") == row
    assert 15 == results.rate("ammeter", 100)


def test_slow_responses_and_delayed_batches_miss_their_limits() -> None:
    cost = IngestCost("ammeter", 30_000_000, 1, 1.0, 1.0, 1.0, 1, 1, 1)
    took = {report.LIST: 51.0, report.SCRAPE: 299.0, BATCH_ALONE: 5.0, BATCH_DURING_SCRAPES: 26.0}
    asked = [Latency(what, "ammeter", 1.0, p95, 900.0, 1) for what, p95 in took.items()]
    found = report.limits(Results([Ingested(100, [cost])], asked))[2:]
    assert [False, True, False] == [limit.is_met for limit in found]
    assert "delay of a batch by scrapes, 95th percentile in ms: 21.00, at most 20: missed" == str(found[-1])


def test_response_times_are_the_medians_of_the_turns_and_servers_of_one_request_stand_together() -> None:
    results = Results()
    for times in (1.0, 5.0, 2.0):
        for name, slower in (("ammeter", 1), ("prometheus", 2)):
            found = Latency("one column", name, times * slower, 2 * times * slower, 3 * times * slower, 1)
            results.latencies += [found, replace(found, what=f"only of {name}")]
    first, second, *others = report.latency_table(results)[1:]
    assert ("one column", "ammeter", "2.0 (1.0 to 5.0)", "4.0 (2.0 to 10.0)", "15.0") == first
    assert ("one column", "prometheus", "4.0 (2.0 to 10.0)", "8.0 (4.0 to 20.0)", "30.0") == second
    assert ["only of ammeter", "only of prometheus"] == [what for what, *_ in others]
    assert 4.0 == results.latency("one column").p95
    with pytest.raises(KeyError, match="not measured"):
        results.latency("not measured")


def test_a_turn_that_fails_is_left_out_and_earlier_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter(range(1, 4))

    def measure(plan: Plan, turn: Results, _: Path) -> None:
        turn.add(100, IngestCost("one", 30_000_000, 1, float(next(costs)), 1.0, 1.0, 1, 1, 1))
        if turn.rate("one", 100) < 12:  # in the third turn
            raise RuntimeError("it stopped")

    monkeypatch.setattr(runner, "STORES", {"one": measure})
    results = runner.measure(replace(TINY, repeats=5), ["one"])
    assert [30.0, 15.0] == [cost.rate for ingested in results.ingested for cost in ingested.costs]
    assert ["one, from turn 3: it stopped"] == results.missing


def test_quick_numbers_do_not_replace_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        collector.main(["--quick", "--write"])
    assert "name another folder" in capsys.readouterr().err
