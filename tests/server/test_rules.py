from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ammeter.verdicts import ALL
from ammeter.verdicts.finding import Verdict
from ammeter_server.exposition import METRICS, PROCESS
from ammeter_server.rules import alert_name, collector_alerts, incident_alerts, rule_file
from tests import parts
from tests.server.feeding import serving

ALERTS = Path(__file__).parents[2] / "alerts"
FILE = ALERTS / "ammeter.rules.yaml"


def promtool(*arguments: str) -> str:
    done = subprocess.run([parts.need("promtool"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts_in(text: str) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}


def test_the_rule_file_is_the_one_that_the_verdicts_make() -> None:
    assert rule_file() == FILE.read_text(), "run: python -m ammeter_server.rules > alerts/ammeter.rules.yaml"


def test_prometheus_takes_the_rule_file() -> None:
    assert f"SUCCESS: {len(ALL) + 3} rules found" in promtool("check", "rules", str(FILE))


def test_every_verdict_has_an_alert_with_a_runbook() -> None:
    alerts = alerts_in(rule_file("https://ammeter.example/"))
    for verdict in ALL:
        alert = alerts[alert_name(verdict.id)]
        assert f"https://ammeter.example/runbooks/{verdict.id}" == alert["annotations"]["runbook_url"]
        assert "https://ammeter.example/runs/{{ $labels.run }}" in alert["annotations"]["description"]


def test_names_are_camel_case() -> None:
    assert "AmmeterScaleCollapse" == alert_name("scale-collapse")


def test_the_prometheus_only_alerts_do_what_alerts_tests_say() -> None:
    promtool("test", "rules", *map(str, sorted((ALERTS / "tests").glob("*.yaml"))))


def test_every_prometheus_only_alert_is_tested_firing_and_silent() -> None:
    cases = [
        case
        for file in (ALERTS / "tests").glob("*.yaml")
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for alert in collector_alerts():
        expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert.name]
        assert {True, False} == set(expected), alert.name


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.id)
def test_an_incident_fires_when_it_opens_not_before_and_never_for_another_verdict(
    verdict: Verdict, tmp_path: Path
) -> None:
    alert = next(each for each in incident_alerts() if each.name == alert_name(verdict.id))
    labels = {"run": "r1", "project": "speech", "verdict": verdict.id, "severity": verdict.severity}

    def said(text: str) -> str:
        return text.replace("{{ $labels.run }}", "r1").replace("{{ $labels.project }}", "speech")

    fired = {
        "exp_labels": labels,
        "exp_annotations": {
            "summary": said(alert.summary),
            "description": said(alert.description),
            "runbook_url": alert.runbook_url,
        },
    }
    series = ",".join(f'{name}="{value}"' for name, value in labels.items())
    input_series = [
        # two replicas say the same; a closed incident is 0 for a while, then it is absent
        {"series": f'ammeter_incident_active{{{series},instance="a"}}', "values": "0x3 1x7 0x7 _x8"},
        {"series": f'ammeter_incident_active{{{series},instance="b"}}', "values": "0x3 1x7 0x7 _x8"},
        {"series": 'ammeter_incident_active{run="r2",verdict="another",severity="page"}', "values": "1x30"},
    ]
    cases = [
        {"eval_time": when, "alertname": alert.name, "exp_alerts": [fired] if firing else []}
        for when, firing in (("45s", False), ("1m", True), ("2m", True), ("3m", False), ("6m", False))
    ]
    test = {"interval": "15s", "input_series": input_series, "alert_rule_test": cases}
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(FILE)], "evaluation_interval": "15s", "tests": [test]}))
    promtool("test", "rules", str(file))


def test_every_metric_in_a_rule_is_exported() -> None:
    exported = {metric.name for metric in (*METRICS, *PROCESS)} | {"up"}
    for alert in (*incident_alerts(), *collector_alerts()):
        assert any(name in alert.expr for name in exported), alert.expr


def test_the_collector_serves_the_rules_with_its_own_address(tmp_path: Path) -> None:
    with serving(tmp_path, public_url="https://ammeter.example") as client:
        answer = client.get("/api/v1/rules")
    assert (200, "application/yaml") == (answer.status_code, answer.headers["content-type"].partition(";")[0])
    assert rule_file("https://ammeter.example") == answer.text


def test_without_the_incidents_only_prometheus_own_alerts_remain() -> None:
    assert {"AmmeterCollectorDown", "AmmeterScrapeAbsent", "AmmeterDeliveryStuck"} == set(
        alerts_in(rule_file(incidents=False))
    )
