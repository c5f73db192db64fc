"""Generates the derived files. Run it after a change: python -m deploy.generate

alerts/ammeter.rules.yaml has the rules of Prometheus. The tables of verdicts in docs/verdicts.md and README.md come
from documents.py. deploy/rules.yaml has the rules of Prometheus beside a collector that posts incidents itself; the
PrometheusRule is the same for Kubernetes. deploy/alertmanager.yaml is the file of alerts/ with the stack's receiver.
dashboards/boards/kustomization.yaml puts every board into a ConfigMap for Grafana's sidecar. alerts/tests are written
by hand, except the first steps of runbooks, which this script inserts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from ammeter_server.incidents.runbook_text import first_steps
from ammeter_server.ops.prometheus_rules import rule_file
from deploy import documents

ROOT = Path(__file__).resolve().parent.parent
HEAD = "# Generated: make deploy\n"
ABOUT = (
    HEAD + "# For docker-compose.yml and `make stack`; alerts/alertmanager.yaml with the address of their receiver.\n"
)


def main() -> None:
    for path, text in files().items():
        (ROOT / path).write_text(text, encoding="utf-8")


def files() -> dict[str, str]:
    """Returns every generated file by its path in the repository."""
    return {
        **documents.files(),
        "alerts/ammeter.rules.yaml": rule_file(),
        "deploy/rules.yaml": _text(rules()),
        "deploy/alertmanager.yaml": _alertmanager(),
        "deploy/kubernetes/rules.yaml": _text(_prometheus_rule()),
        "dashboards/boards/kustomization.yaml": _text(_boards()),
    } | {
        f"alerts/tests/{path.name}": _with_first_steps(path.read_text())
        for path in sorted((ROOT / "alerts" / "tests").glob("*.yaml"))
    }


def _with_first_steps(tests: str) -> str:
    """Inserts the first steps of runbooks into the expected alerts of promtool's tests."""
    pattern = r"^( *)(runbook_url: .*/runbooks/([a-z-]+)'?)\n(?: *first_steps: .*\n)?"

    def expected(match: re.Match[str]) -> str:
        steps = json.dumps(first_steps(match[3]), ensure_ascii=False)
        return f"{match[1]}{match[2]}\n{match[1]}first_steps: {steps}\n"

    return re.sub(pattern, expected, tests, flags=re.MULTILINE)


def rules() -> dict[str, Any]:
    """Returns the rules that only Prometheus can evaluate: nothing else checks them."""
    content: dict[str, Any] = yaml.safe_load(rule_file(incidents=False))
    return content


def _alertmanager() -> str:
    shipped = (ROOT / "alerts" / "alertmanager.yaml").read_text()
    return ABOUT + shipped.replace("http://127.0.0.1:9099/", "http://pages:9099/")


def _prometheus_rule() -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ammeter"},
        "spec": rules(),
    }


def _boards() -> dict[str, Any]:
    boards = sorted(path.name for path in (ROOT / "dashboards" / "boards").glob("*.json"))
    generator = {"name": "ammeter-boards", "files": boards, "options": {"labels": {"grafana_dashboard": "1"}}}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "configMapGenerator": [generator],
    }


def _text(content: dict[str, Any]) -> str:
    return HEAD + yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)


if __name__ == "__main__":
    main()
