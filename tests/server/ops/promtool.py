"""Rule files and their alerts, and promtool that tests them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ammeter_server.incidents.runbook_text import first_steps
from ammeter_server.ops.prometheus_rules import DEFAULT_URL, collector_alerts, rule_file
from ammeter_server.prometheus.rule_types import Alert
from ammeter_server.prometheus.slo import alerts, objectives
from tests import parts

ALERTS = Path(__file__).parents[3] / "alerts"
FILE = ALERTS / "ammeter.rules.yaml"

FAILED_CASE = re.compile(r"alertname: (\w+), time: ")
"""A case in the output of `promtool test rules` whose alerts are not the expected ones."""


def promtool(*arguments: str) -> str:
    done = run_promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([parts.need("promtool"), *arguments], capture_output=True, text=True, timeout=120)


def promtool_case(folder: Path, rules: Path, series: Sequence[Mapping[str, str]], cases: Sequence[Any]) -> str:
    """Writes one test of the rules for `promtool test rules`, and returns its path."""
    test = {"interval": "15s", "input_series": series, "alert_rule_test": cases}
    file = folder / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "15s", "tests": [test]}))
    return str(file)


@cache
def generated_alerts() -> dict[str, dict[str, Any]]:
    return alerts_in(rule_file())


def alerts_in(text: str) -> dict[str, dict[str, Any]]:
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def prometheus_own() -> list[Alert]:
    """What Prometheus alone can know."""
    return [*collector_alerts(), *(alert for objective in objectives() for alert in alerts(objective))]


def active_series(labels: Mapping[str, str]) -> str:
    """The metric of an incident with these labels."""
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"ammeter_incident_active{{{text}}}"


def only_rules(names: set[str], file: Path) -> Path:
    """Writes the shipped rules of these alerts: hours of all of them take promtool long."""
    groups = yaml.safe_load(FILE.read_text())["groups"]
    kept = [group | {"rules": [rule for rule in group["rules"] if rule.get("alert") in names]} for group in groups]
    assert len(names) == sum(len(group["rules"]) for group in kept)
    file.write_text(json.dumps({"groups": [group for group in kept if group["rules"]]}))
    return file


def fired_alert(alert: Alert, labels: Mapping[str, str]) -> dict[str, Any]:
    """The alert of an incident as Prometheus has it."""

    def filled(text: str) -> str:
        return text.replace("{{ $labels.run }}", labels["run"]).replace("{{ $labels.project }}", labels["project"])

    return {
        "exp_labels": {**labels, **{name: filled(text) for name, text in alert.labels.items()}},
        "exp_annotations": {
            "summary": filled(alert.summary),
            "description": filled(alert.description),
            "runbook_url": f"{DEFAULT_URL}/runbooks/{alert.id}",
            "first_steps": first_steps(alert.id),
        },
    }
