"""GET /api/v1/rules: the Prometheus rule file, generated from the list of verdicts.

The thresholds live in the verdicts; a rule only asks whether an incident is open. `python -m ammeter_server.rules`
writes the file that is kept in alerts/.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from ammeter.verdicts import ALL
from ammeter.verdicts.finding import Verdict
from ammeter_server.collector import Here

router = APIRouter(tags=["metrics"])

DEFAULT_URL = "http://127.0.0.1:8480"
HEAD = "# Generated from the list of verdicts: python -m ammeter_server.rules > alerts/ammeter.rules.yaml\n"


@dataclass(frozen=True)
class Alert:
    """One alerting rule. wait: how long the expression holds before it fires, as Prometheus writes durations."""

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    wait: str = "0s"
    runbook_url: str = ""
    labels: dict[str, str] = field(default_factory=dict)


class RuleFile(PlainTextResponse):
    media_type = "application/yaml"


CONTENT = {"application/yaml": {"schema": {"type": "object", "required": ["groups"]}}}


@router.get(
    "/api/v1/rules", response_class=RuleFile, summary="Prometheus rule file", responses={200: {"content": CONTENT}}
)
def read_rules(here: Here) -> RuleFile:
    """A rule file for Prometheus: an alert for every verdict, and what only Prometheus can know."""
    return RuleFile(rule_file(here.settings.page_url))


def rule_file(public_url: str = DEFAULT_URL, incidents: bool = True) -> str:
    """The YAML text. incidents=False leaves only what Prometheus alone can know."""
    groups = [{"name": "ammeter-collector", "rules": [rule(alert) for alert in collector_alerts()]}]
    if incidents:
        of_runs = [rule(alert) for alert in incident_alerts(public_url)]
        groups.insert(0, {"name": "ammeter-incidents", "rules": of_runs})
    return HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=1000, allow_unicode=True)


def incident_alerts(public_url: str = DEFAULT_URL) -> list[Alert]:
    """One alert per verdict. Its severity is the metric's label: a verdict may open as a ticket and page later."""
    return [_incident_alert(verdict, public_url.rstrip("/")) for verdict in ALL]


def alert_name(verdict: str) -> str:
    """'scale-collapse' -> 'AmmeterScaleCollapse'."""
    return "Ammeter" + "".join(word.capitalize() for word in verdict.split("-"))


def _incident_alert(verdict: Verdict, public_url: str) -> Alert:
    return Alert(
        name=alert_name(verdict.id),
        expr=f'max by (run, project, verdict, severity) (ammeter_incident_active{{verdict="{verdict.id}"}}) == 1',
        severity="{{ $labels.severity }}",
        summary=f"{verdict.title} in run {{{{ $labels.run }}}} of project {{{{ $labels.project }}}}",
        description=f"{verdict.question} Cause and fix: {public_url}/runs/{{{{ $labels.run }}}}",
        runbook_url=f"{public_url}/runbooks/{verdict.id}",
        labels={"run": "{{ $labels.run }}"},
    )


def collector_alerts() -> list[Alert]:
    """What only Prometheus sees: that nobody answers. Scrape jobs are called ammeter and ammeter-collector."""
    return [
        Alert(
            name="AmmeterCollectorDown",
            expr='up{job=~"ammeter|ammeter-collector"} == 0',
            wait="2m",
            severity="page",
            summary="The Ammeter collector at {{ $labels.instance }} does not answer",
            description="Training runs go on and keep their journals, but nobody is told about a broken one. "
            "Start the collector again; agents send what they kept. First look: GET /readyz and the collector's log.",
        ),
        Alert(
            name="AmmeterScrapeAbsent",
            expr='absent(up{job="ammeter"})',
            wait="5m",
            severity="ticket",
            summary="Prometheus scrapes no job called ammeter",
            description="Alerts on runs stay silent without it. Add a scrape job named ammeter for the collector's "
            "/metrics, or find out who removed it.",
        ),
        Alert(
            name="AmmeterDeliveryStuck",
            expr="max(ammeter_collector_outbox_pending) > 0",
            wait="10m",
            severity="ticket",
            summary="{{ $value }} notifications have been waiting for ten minutes",
            description="A channel refuses them. Look at ammeter_collector_deliveries_total by channel and "
            "outcome, and at the collector's log for the channel's answer.",
        ),
    ]


def rule(alert: Alert) -> dict[str, object]:
    """The alert as a rule file says it."""
    annotations = {"summary": alert.summary, "description": alert.description}
    if alert.runbook_url:
        annotations["runbook_url"] = alert.runbook_url
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity, **alert.labels},
        "annotations": annotations,
    }


if __name__ == "__main__":
    print(rule_file(), end="")
