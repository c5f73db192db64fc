"""GET /api/v1/rules: the Prometheus rule file, generated from the list of verdicts and the two objectives.

A verdict's threshold lives in the verdict; its rule only asks whether an incident is open.
`python -m ammeter_server.rules` writes the file that is kept in alerts/.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from ammeter.verdicts import ALL
from ammeter.verdicts.finding import Verdict
from ammeter_server import objectives
from ammeter_server.alerts import Alert
from ammeter_server.collector import Here
from ammeter_server.objectives import Objective

router = APIRouter(tags=["metrics"])

DEFAULT_URL = "http://127.0.0.1:8480"
HEAD = "# Generated: python -m ammeter_server.rules > alerts/ammeter.rules.yaml\n"


LAGGING = 64 * 2**20
"""Bytes of journal of a run that wait. From 256 MiB of a rank on the agent keeps every tenth step only, then fewer."""


REMEMBERED = "5m"
"""For how long an incident goes on when nothing is heard of it: a scrape that fails must not end it, and page again.
One that is over is shown with 0 for as long."""


class RuleFile(PlainTextResponse):
    media_type = "application/yaml"


CONTENT = {"application/yaml": {"schema": {"type": "object", "required": ["groups"]}}}


@router.get(
    "/api/v1/rules", response_class=RuleFile, summary="Prometheus rule file", responses={200: {"content": CONTENT}}
)
def read_rules(here: Here) -> RuleFile:
    """A rule file for Prometheus: the objectives, what only Prometheus can know, and an alert for every verdict.

    Without these alerts where the collector posts incidents to an Alertmanager itself: one owner pages.
    """
    settings = here.settings
    wanted = objectives.objectives(settings.objective_runs, settings.objective_steps)
    return RuleFile(rule_file(settings.page_url, incidents=not settings.alertmanagers, wanted=wanted))


def rule_file(
    public_url: str = DEFAULT_URL, incidents: bool = True, wanted: Sequence[Objective] = objectives.objectives()
) -> str:
    """The YAML text. incidents=False leaves only what Prometheus alone can know."""
    url = public_url.rstrip("/")
    groups: dict[str, list[Alert]] = {"ammeter-incidents": incident_alerts(url)} if incidents else {}
    groups["ammeter-collector"] = collector_alerts()
    rules = {name: [alert.rule(url) for alert in alerts] for name, alerts in groups.items()}
    for each in wanted:
        recorded = [recording.rule() for recording in objectives.recordings(each)]
        rules[f"ammeter-{each.subject}"] = [*recorded, *(alert.rule(url) for alert in objectives.alerts(each))]
    named = [{"name": name, "rules": those} for name, those in rules.items()]
    return HEAD + yaml.safe_dump({"groups": named}, sort_keys=False, width=1000, allow_unicode=True)


def incident_alerts(public_url: str = DEFAULT_URL) -> list[Alert]:
    """One alert per verdict. Its severity is the metric's label: a verdict may open as a ticket and page later."""
    return [_incident_alert(verdict, public_url) for verdict in ALL]


def _incident_alert(verdict: Verdict, public_url: str) -> Alert:
    active = f'last_over_time(ammeter_incident_active{{verdict="{verdict.id}"}}[{REMEMBERED}])'
    return Alert(
        id=verdict.id,
        expr=f"max by (run, project, verdict, severity) ({active}) == 1",
        severity="{{ $labels.severity }}",
        summary=f"{verdict.title}: run {{{{ $labels.run }}}} of project {{{{ $labels.project }}}}",
        description=f"{verdict.question} Yes. Cause and fix: {public_url}/runs/{{{{ $labels.run }}}}",
        labels={"run": "{{ $labels.run }}"},
    )


def collector_alerts() -> list[Alert]:
    """What only Prometheus sees: that nobody answers, and what the collector cannot say by itself any more.

    Scrape jobs are called ammeter and ammeter-collector.
    """
    return [
        Alert(
            id="collector-down",
            expr='up{job=~"ammeter|ammeter-collector"} == 0',
            wait="2m",
            severity="page",
            summary="Prometheus gets no metrics from the Ammeter collector at {{ $labels.instance }}",
            description="It is down, its database is away, or the way there or the token is wrong. Training runs go on "
            "and keep their journals, but while no collector works nobody is told about a broken one. First look: "
            "GET /readyz on it, and the end of its log. Once it works again, agents send what they kept.",
        ),
        Alert(
            id="scrape-absent",
            expr='absent(up{job="ammeter"})',
            wait="5m",
            severity="ticket",
            summary="Prometheus scrapes no job called ammeter",
            description="Alerts on runs stay silent without it. Add a scrape job named ammeter for the collector's "
            "/metrics, or find out who removed it.",
        ),
        Alert(
            id="ingest-failing",
            expr='sum(rate(ammeter_collector_ingest_requests_total{code=~"5.."}[5m])) '
            '> 0.5 * sum(rate(ammeter_collector_ingest_requests_total{code=~"[25].."}[5m]))',
            wait="5m",
            severity="page",
            summary="The Ammeter collector takes less than half of what runs send",
            description="It answers, but with errors of its own: a full disk, a database that is away, too much at "
            "once. Agents keep what it refuses and send it again; meanwhile nobody is told about a broken run. First "
            "look: the collector's log, GET /readyz, and the room on its disk.",
        ),
        Alert(
            id="ingest-lag",
            expr=f"count(max by (run) (ammeter_agent_journal_bytes) > {LAGGING})",
            wait="10m",
            severity="ticket",
            summary="Runs with more than 64 MiB that have been waiting to be sent for ten minutes: {{ $value }}",
            description="What the page and the alerts say of them is behind what happens. From 256 MiB of a "
            "rank on not every step is kept. Look whether the collector or the way to it is too slow: "
            "ammeter_agent_journal_bytes says which runs they are, ammeter_collector_ingest_duration_seconds how long "
            "a batch takes to be stored.",
        ),
        Alert(
            id="delivery-stuck",
            expr="max(ammeter_collector_outbox_pending) > 0",
            wait="10m",
            severity="ticket",
            summary="Notifications that have been waiting for ten minutes: {{ $value }}",
            description="Somebody should have heard of a run and has not: a channel does not take it. It is tried "
            "again for a day. First look: the collector's log for what the channel answered, and "
            "ammeter_collector_deliveries_total by channel and outcome.",
        ),
    ]


if __name__ == "__main__":
    print(rule_file(), end="")
