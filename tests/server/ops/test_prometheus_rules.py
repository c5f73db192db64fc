"""The rule file for Prometheus: what the verdicts and objectives make of it, and what its alerts do."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ammeter.verdicts import ALL
from ammeter.verdicts.framework.finding import Verdict
from ammeter_server.config.links import Links
from ammeter_server.incidents.runbook_text import alert_name
from ammeter_server.ops.prometheus_rules import DEFAULT_URL, incident_alerts, rule_file
from ammeter_server.ops.runbooks import OF_ALERTS
from ammeter_server.process import self_metrics
from ammeter_server.prometheus.metrics import METRICS, PROCESS_METRICS
from ammeter_server.prometheus.rule_types import Alert
from ammeter_server.prometheus.slo import objectives, recordings
from tests import parts
from tests.server.callers import bearer
from tests.server.feeding import serving
from tests.server.ops.promtool import (
    ALERTS,
    FAILED_CASE,
    FILE,
    active_series,
    alerts_in,
    fired_alert,
    generated_alerts,
    only_rules,
    prometheus_own,
    promtool,
    promtool_case,
    run_promtool,
)


def test_the_rule_file_is_the_one_that_the_verdicts_make() -> None:
    assert rule_file() == FILE.read_text(), (
        "run: python -m ammeter_server.ops.prometheus_rules > alerts/ammeter.rules.yaml"
    )


def test_prometheus_takes_the_rule_file() -> None:
    recorded = sum(len(recordings(objective)) for objective in objectives())
    wanted = len(ALL) + len(prometheus_own()) + recorded
    assert f"SUCCESS: {wanted} rules found" in promtool("check", "rules", str(FILE))


def test_prometheus_and_alertmanager_take_the_configurations_that_load_it() -> None:
    assert "is valid prometheus config file" in promtool("check", "config", str(ALERTS / "prometheus.yaml"))
    checked = [parts.need("amtool"), "check-config", str(ALERTS / "alertmanager.yaml")]
    assert b"SUCCESS" in subprocess.run(checked, capture_output=True, check=True, timeout=60).stdout


def test_the_scrape_jobs_are_those_that_the_rules_ask_for() -> None:
    jobs = {job["job_name"] for job in yaml.safe_load((ALERTS / "prometheus.yaml").read_text())["scrape_configs"]}
    asked = {job for alert in prometheus_own() for job in re.findall(r"\bammeter(?:-collector)?(?=[|\"])", alert.expr)}
    assert jobs == asked


@cache
def alerts_with_links() -> dict[str, dict[str, Any]]:
    return alerts_in(rule_file(Links("https://ammeter.example/")))


@pytest.mark.parametrize("alert", prometheus_own(), ids=lambda alert: alert.id)
def test_every_alert_of_prometheus_own_has_a_runbook_with_a_title(alert: Alert) -> None:
    annotations = alerts_with_links()[alert.name]["annotations"]
    assert f"https://ammeter.example/runbooks/{alert.id}" == annotations["runbook_url"]
    heading = (ALERTS / "runbooks" / f"{alert.id}.md").read_text().splitlines()[0]
    assert f"# {OF_ALERTS[alert.id]}" == heading


def test_no_runbook_is_left_of_an_alert_that_is_gone() -> None:
    assert set(OF_ALERTS) == {alert.id for alert in prometheus_own()}


def test_every_verdict_has_an_alert_with_a_runbook() -> None:
    for verdict in ALL:
        alert = alerts_with_links()[alert_name(verdict.id)]
        assert f"https://ammeter.example/runbooks/{verdict.id}" == alert["annotations"]["runbook_url"]
        assert "https://ammeter.example/runs/{{ $labels.run }}" in alert["annotations"]["description"]


def test_names_are_camel_case() -> None:
    assert "AmmeterScaleCollapse" == alert_name("scale-collapse")


def test_the_prometheus_only_alerts_do_what_alerts_tests_say(tmp_path: Path) -> None:
    """With the rules of a collector that posts its incidents itself: days of all of them take promtool long."""
    tests = shutil.copytree(ALERTS / "tests", tmp_path / "tests")
    own = rule_file(incidents=False)
    (tmp_path / FILE.name).write_text(own)
    assert alerts_in(own).items() <= generated_alerts().items()
    promtool("test", "rules", *map(str, sorted(tests.glob("*.yaml"))))


def test_every_prometheus_only_alert_is_tested_firing_and_silent() -> None:
    cases = [
        case
        for file in (ALERTS / "tests").glob("*.yaml")
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for alert in prometheus_own():
        expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert.name]
        assert ({True} if alert.id == "watchdog" else {True, False}) == set(expected), alert.name


@pytest.fixture(scope="module")
def incident_cases(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The result of one run of promtool in which every verdict has an open incident of its own run."""
    series = [
        {"series": 'ammeter_incident_active{run="other",verdict="another",severity="page"}', "values": "1x30"},
        {"series": 'up{job="ammeter",instance="a"}', "values": "1x40"},
    ]
    cases = []
    for verdict in ALL:
        labels = {"run": f"r-{verdict.id}", "project": "speech", "verdict": verdict.id, "severity": verdict.severity}
        # two replicas say the same, until three scrapes fail; a closed incident is 0 for a while, then it is absent
        series += [
            {"series": active_series(labels | {"instance": name}), "values": "0x3 1x2 stale _x2 1x1 0x7 _x8"}
            for name in "ab"
        ]
        alert = next(candidate for candidate in incident_alerts() if candidate.name == alert_name(verdict.id))
        cases += [
            {"eval_time": time, "alertname": alert.name, "exp_alerts": [fired_alert(alert, labels)] if firing else []}
            for time, firing in (("45s", False), ("1m", True), ("2m", True), ("4m", False), ("6m", False))
        ]
    return run_promtool("test", "rules", promtool_case(tmp_path_factory.mktemp("incidents"), FILE, series, cases))


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.id)
def test_an_incident_fires_when_it_opens_not_before_and_never_for_another_verdict(
    verdict: Verdict, incident_cases: subprocess.CompletedProcess[str]
) -> None:
    """The other verdicts have incidents of other runs, which an alert for all verdicts would name."""
    output = incident_cases.stdout + incident_cases.stderr
    failed = FAILED_CASE.findall(output)
    assert incident_cases.returncode == 0 or failed, output
    assert alert_name(verdict.id) not in failed, output


def test_an_incident_is_not_over_while_nobody_can_know_it(tmp_path: Path) -> None:
    """Its series vanish with the collector, for hours; it ends when a scrape says that it is over, or says nothing of
    it. One that ended before is not brought back, and none begins meanwhile."""
    names = {"run-lost": "r1", "run-stalled": "r2", "scale-collapse": "r3"}
    active = {
        "run-lost": "1x3 stale _x720 1x2 0x20",
        "run-stalled": "1x3 stale _x720 _x23",
        "scale-collapse": "1x1 0x1 stale _x743",
    }
    labels = {
        verdict: {"run": run, "project": "p", "verdict": verdict, "severity": "page"} for verdict, run in names.items()
    }
    series = [{"series": active_series(own), "values": active[verdict]} for verdict, own in labels.items()]
    series.append({"series": 'up{job="ammeter",instance="a"}', "values": "1x3 0x720 1x23"})
    firing = {
        "45s": {"r1", "r2"},
        "30m": {"r1", "r2"},
        "180m": {"r1", "r2"},
        "181m30s": {"r1", "r2"},  # for a minute after the first scrape, which says nothing of the second
        "183m": set(),
    }
    alerts = {alert.id: alert for alert in incident_alerts() if alert.id in names}
    cases = [
        {
            "eval_time": when,
            "alertname": alerts[verdict].name,
            "exp_alerts": [fired_alert(alerts[verdict], labels[verdict])] if run in runs else [],
        }
        for when, runs in firing.items()
        for verdict, run in names.items()
        if (when, run) != ("45s", "r3")  # which lingers for a minute
    ]
    rules = only_rules({alert.name for alert in alerts.values()}, tmp_path / "rules.yaml")
    promtool("test", "rules", promtool_case(tmp_path, rules, series, cases))


@pytest.mark.parametrize("name", [*(verdict.id for verdict in ALL), *OF_ALERTS])
def test_every_alert_says_the_first_three_steps_of_its_runbook_itself(name: str) -> None:
    first_steps = generated_alerts()[alert_name(name)]["annotations"]["first_steps"]
    assert ["1. ", "2. ", "3. "] == [line[:3] for line in first_steps.splitlines()]
    assert not re.search(r"`|\*\*|\]\(|…$", first_steps)


def test_runbooks_may_lie_elsewhere_than_the_collector(tmp_path: Path) -> None:
    wiki, tree = "https://wiki.example/ammeter/", "https://git.example/main/alerts/runbooks/{id}.md?plain=1"
    for base, expected in (
        (wiki, "https://wiki.example/ammeter/run-lost"),
        (tree, "https://git.example/main/alerts/runbooks/run-lost.md?plain=1"),
    ):
        (tmp_path / expected[8:11]).mkdir()
        with serving(tmp_path / expected[8:11], public_url=DEFAULT_URL, runbook_url=base) as client:
            annotations = alerts_in(client.get("/api/v1/rules").text)["AmmeterRunLost"]["annotations"]
        assert expected == annotations["runbook_url"]
        assert f"{DEFAULT_URL}/runs/" in annotations["description"]


def test_a_dead_mans_switch_always_fires_and_has_a_receiver_of_its_own() -> None:
    configuration = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text())
    checked = [parts.need("amtool"), "config", "routes", "test", f"--config.file={ALERTS / 'alertmanager.yaml'}"]
    for labels, receiver in (
        (["alertname=AmmeterWatchdog", "severity=none"], "watchdog"),
        (["alertname=AmmeterRunLost", "severity=page", "project=p", "run=r"], "page"),
        (["alertname=AmmeterReplicaDown", "severity=ticket"], "ticket"),
    ):
        found = subprocess.run([*checked, *labels], capture_output=True, text=True, check=True, timeout=60)
        assert receiver == found.stdout.strip()
    (switch,) = (route for route in configuration["route"]["routes"] if route["receiver"] == "watchdog")
    assert ("30s", "1m") == (switch["group_interval"], switch["repeat_interval"])
    assert "vector(1)" == generated_alerts()["AmmeterWatchdog"]["expr"]


def test_the_first_page_is_told_at_once_and_those_that_join_its_group_by_the_minute() -> None:
    routes = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text())["route"]["routes"]
    (page,) = (route for route in routes if route["receiver"] == "page")
    assert ("1s", "1m") == (page["group_wait"], page["group_interval"])


def test_every_metric_in_a_rule_is_exported() -> None:
    own = {family.name + ("_total" if family.type == "counter" else "") for family in self_metrics.REGISTRY.collect()}
    exported = own | {metric.name for metric in (*METRICS, *PROCESS_METRICS)}
    recorded = {recording.name for objective in objectives() for recording in recordings(objective)}
    for alert in (*incident_alerts(), *prometheus_own()):
        asked = re.findall(r"(?:project:)?ammeter_[\w:]+", alert.expr)
        assert set(asked) <= exported | recorded, alert.expr
        assert asked or "up{" in alert.expr or alert.id == "watchdog"
    for expr in (recording.expr for objective in objectives() for recording in recordings(objective)):
        fleet = {f"ammeter_fleet_{subject}_total" for subject in ("runs", "steps", "validations", "times")}
        assert fleet >= set(re.findall(r"ammeter_\w+", expr))


def test_the_collector_serves_the_rules_with_its_own_address(tmp_path: Path) -> None:
    with serving(tmp_path, token="f" * 40, public_url="https://ammeter.example") as client:
        answer = client.get("/api/v1/rules", headers=bearer("f" * 40))
    assert (200, "application/yaml") == (answer.status_code, answer.headers["content-type"].partition(";")[0])
    assert rule_file(Links("https://ammeter.example")) == answer.text


def test_without_the_incidents_only_prometheus_own_alerts_remain() -> None:
    assert {alert.name for alert in prometheus_own()} == set(alerts_in(rule_file(incidents=False)))


def test_a_collector_that_posts_to_alertmanager_serves_the_rules_without_the_incidents(tmp_path: Path) -> None:
    with serving(tmp_path, alertmanagers=("http://127.0.0.1:9",), public_url=DEFAULT_URL) as client:
        assert rule_file(incidents=False) == client.get("/api/v1/rules").text


def test_the_collector_serves_the_objectives_that_its_settings_ask_for(tmp_path: Path) -> None:
    with serving(tmp_path, objective_runs=0.9, objective_steps=0.995) as client:
        served = alerts_in(client.get("/api/v1/rules").text)
    burning = "project:ammeter_fleet_{0} > {1} and project:ammeter_fleet_{2} > {1} and "
    runs, steps = served["AmmeterRunsFailed"], served["AmmeterStepsObjectiveMissed"]
    assert burning.format("runs_failed:ratio_increase6h", 0.2, "runs_failed:ratio_increase30m") in runs["expr"]
    assert burning.format("steps_skipped:ratio_increase3d", 0.005, "steps_skipped:ratio_increase6h") in steps["expr"]
    assert "allows 10 % of the runs" in runs["annotations"]["description"]
    assert "allows 0.5 % of the steps" in steps["annotations"]["description"]
