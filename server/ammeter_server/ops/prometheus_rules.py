"""GET /api/v1/rules: the Prometheus rule file, generated from the list of verdicts and the objectives.

Thresholds belong to the verdicts; a rule only checks whether an incident is open. `python -m
ammeter_server.ops.prometheus_rules` writes the file in alerts/.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from ammeter.verdicts import ALL
from ammeter.verdicts.framework.finding import Verdict
from ammeter_server.config.links import Links
from ammeter_server.context import ContextDep
from ammeter_server.incidents.wording import alert_name
from ammeter_server.prometheus import slo
from ammeter_server.prometheus.rule_types import Alert
from ammeter_server.prometheus.slo import Objective

router = APIRouter(tags=["metrics"])

DEFAULT_URL = "http://127.0.0.1:8480"
DEFAULT_LINKS = Links(DEFAULT_URL)
HEAD = "# Generated: python -m ammeter_server.ops.prometheus_rules > alerts/ammeter.rules.yaml\n"


LAGGING = 64 * 2**20
"""Bytes of unsent journal of a run that raise an alert. From 256 MiB per rank on, the agent keeps only every tenth
step, then fewer."""


REMEMBERED = "5m"
"""How long an incident stays active without a sample: a failed scrape must not end it and page again. A closed incident
is exposed with 0 for as long."""

LINGER = "1m"
"""How long an incident alert fires on after its expression is no longer true. It equals Alertmanager's wait before the
next change of a group, so that an incident that returns within a minute is not a new page."""

UNHEARD = 'absent(up{job="ammeter"} == 1)'
"""1 while no scrape of /metrics succeeds: the collector is down or frozen, or is not scraped. Meanwhile the end of an
incident is unknown."""

FREE_RATIO, FREE_RATIO_PAGE = 0.4, 0.05
"""Free shares of the database's disk: below the first, its growth raises a ticket; below the second it pages."""

JUDGE_LAG_SECONDS = 120
"""Seconds until an alert. The judge evaluates a running run every half minute, and at once after a finding."""

LOST_RECORDS = 100
"""Records in 15 minutes. A process that is killed on a GPU loses up to 64 steps in flight."""

FAILED_DELIVERIES = 5
"""Failures of one channel in 15 minutes without a success: the retries have lasted more than half a minute."""


class RuleFile(PlainTextResponse):
    media_type = "application/yaml"


CONTENT = {"application/yaml": {"schema": {"type": "object", "required": ["groups"]}}}


@router.get(
    "/api/v1/rules", response_class=RuleFile, summary="Prometheus rule file", responses={200: {"content": CONTENT}}
)
def read_rules(context: ContextDep) -> RuleFile:
    """Returns a rule file: objectives, alerts on the collector, and an alert per verdict.

    The alerts of verdicts are omitted if the collector posts incidents to an Alertmanager itself, so that only one
    system pages.
    """
    settings = context.settings
    wanted = slo.objectives(
        settings.objective_runs,
        settings.objective_steps,
        settings.objective_finite,
        settings.objective_validation,
        settings.objective_time,
    )
    return RuleFile(rule_file(settings.links, incidents=not settings.alertmanagers, wanted=wanted))


def rule_file(
    links: Links = DEFAULT_LINKS, incidents: bool = True, wanted: Sequence[Objective] = slo.objectives()
) -> str:
    """Renders the YAML text.

    Args:
        incidents: False omits the alerts of verdicts and leaves those that only Prometheus can raise.
    """
    groups: dict[str, list[Alert]] = {"ammeter-incidents": incident_alerts(links)} if incidents else {}
    groups["ammeter-collector"] = collector_alerts()
    rules = {name: [alert.rule(links) for alert in alerts] for name, alerts in groups.items()}
    for each in wanted:
        recorded = [recording.rule() for recording in slo.recordings(each)]
        rules[f"ammeter-{each.name}"] = [*recorded, *(alert.rule(links) for alert in slo.alerts(each))]
    named = [{"name": name, "rules": those} for name, those in rules.items()]
    return HEAD + yaml.safe_dump({"groups": named}, sort_keys=False, width=1000, allow_unicode=True)


def incident_alerts(links: Links = DEFAULT_LINKS) -> list[Alert]:
    """One alert per verdict.

    Its severity is the metric's label, because an incident may open as a ticket and page later.
    """
    return [_incident_alert(verdict, links) for verdict in ALL]


def _incident_alert(verdict: Verdict, links: Links) -> Alert:
    """Builds the alert of a verdict.

    It keeps firing while scrapes fail, for any length of time, because it reads its own state of the previous
    evaluation. It ends if the last sample showed a closed incident.
    """
    labels = "run, project, verdict, severity"
    active = f'last_over_time(ammeter_incident_active{{verdict="{verdict.id}"}}[{REMEMBERED}])'
    fired = f'ALERTS{{alertname="{alert_name(verdict.id)}",alertstate="firing"}}'
    return Alert(
        id=verdict.id,
        expr=f"max by ({labels}) ({active}) == 1 or "
        f"(max by ({labels}) ({fired}) and on () {UNHEARD} unless max by ({labels}) ({active}) == 0)",
        severity="{{ $labels.severity }}",
        summary=f"{verdict.title}: run {{{{ $labels.run }}}} of project {{{{ $labels.project }}}}",
        description=f"{verdict.question} Yes. Cause and fix: {links.run('{{ $labels.run }}')}",
        linger=LINGER,
        labels={"run": "{{ $labels.run }}"},
    )


def collector_alerts() -> list[Alert]:
    """Alerts that only Prometheus can raise: the collector is unreachable or cannot notify.

    The scrape jobs are called ammeter and ammeter-collector.
    """
    return [
        Alert(
            id="watchdog",
            expr="vector(1)",
            severity="none",
            summary="Prometheus and Alertmanager can tell people of Ammeter",
            description="Always fires, and means that alerts arrive. Let a service that hears it every minute page "
            "when it does not: nobody else can say that Prometheus or Alertmanager is down.",
        ),
        Alert(
            id="collector-down",
            expr=UNHEARD,
            wait="2m",
            severity="page",
            summary="Prometheus gets no metrics from any Ammeter collector",
            description="It is down or frozen, its database is away, the way there or the token is wrong, or no scrape "
            "job is called ammeter. Training runs go on and keep their journals, but while no collector works nobody "
            "is told about a broken one. Once it works again, agents send what they kept.",
        ),
        Alert(
            id="replica-down",
            expr=f'up{{job="ammeter-collector"}} == 0 unless on () {UNHEARD}',
            wait="2m",
            severity="ticket",
            summary="The Ammeter collector at {{ $labels.instance }} does not answer; another one does",
            description="Runs are judged and people are told by those that are left. When they go too, nobody is.",
        ),
        Alert(
            id="scrape-absent",
            expr='absent(up{job="ammeter-collector"})',
            wait="5m",
            severity="ticket",
            summary="Prometheus scrapes no job called ammeter-collector",
            description="Alerts on the collector itself stay silent without it: a disk that fills, batches that it "
            "refuses, notifications that do not arrive. Add a scrape job named ammeter-collector for /metrics/self of "
            "each collector, or find out who removed it.",
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
            id="judge-lag",
            expr=f"min(ammeter_collector_judge_lag_seconds) > {JUDGE_LAG_SECONDS}",
            wait="2m",
            severity="page",
            summary="Runs have waited {{ $value | humanizeDuration }} to be judged by the Ammeter collector",
            description="It takes in what runs send, and nobody looks at what is wrong with them: no incident opens, "
            "and none is told. First look: the collector's log for runs that could not be judged.",
        ),
        Alert(
            id="disk-full",
            expr="min by (instance) (ammeter_collector_storage_disk_free_bytes / ammeter_collector_storage_disk_bytes) "
            f"< {FREE_RATIO_PAGE}",
            wait="2m",
            severity="page",
            summary="Of the disk of the Ammeter collector's database {{ $value | humanizePercentage }} is free",
            description="When nothing is left the collector refuses what runs send, with 507; journals grow on the "
            "training hosts, and nobody is told about a broken run.",
        ),
        Alert(
            id="disk-fills",
            expr="min by (instance) (predict_linear(ammeter_collector_storage_disk_free_bytes[6h], 86400)) < 0 "
            "and min by (instance) (ammeter_collector_storage_disk_free_bytes / ammeter_collector_storage_disk_bytes) "
            f"< {FREE_RATIO}",
            wait="30m",
            severity="ticket",
            summary="The disk of the Ammeter collector's database is full in a day when it fills on as it does",
            description="By how its free space fell in six hours. AMMETER_SERVER_KEEP_DAYS and "
            "AMMETER_SERVER_KEEP_BYTES bound what the database keeps; `ammeter-server storage` says what takes the "
            "room.",
        ),
        Alert(
            id="delivery-failing",
            expr='sum by (channel) (increase(ammeter_collector_deliveries_total{outcome="failed"}[15m])) '
            f"> {FAILED_DELIVERIES} unless on (channel) "
            '(sum by (channel) (increase(ammeter_collector_deliveries_total{outcome="sent"}[15m])) > 0)',
            severity="page",
            summary="No notification of Ammeter arrives by {{ $labels.channel }}",
            description="Every attempt of the last quarter of an hour failed, so whoever is told by this channel is "
            "not told of broken runs. It is tried again for a day. First look: the collector's log for what the "
            "channel answered.",
        ),
        Alert(
            id="verdict-faults",
            expr="sum by (verdict) (increase(ammeter_collector_verdict_faults_total[1h])) > 0",
            severity="ticket",
            summary="The verdict {{ $labels.verdict }} failed by a fault of its own",
            description="It is switched off for the streams in which that happened, which are not looked at for this "
            "trouble any more; everything else goes on. It is a fault of Ammeter's: please report it.",
        ),
        Alert(
            id="limits-hit",
            expr="sum by (limit) (increase(ammeter_collector_limited_total[15m])) > 0",
            wait="5m",
            severity="ticket",
            summary="The limit {{ $labels.limit }} of the Ammeter collector refuses requests",
            description="Somebody sends or asks for more than the collector takes of one: what it refuses of a run is "
            "missing, or waits.",
        ),
        Alert(
            id="records-lost",
            expr=f"sum by (reason) (increase(ammeter_collector_lost_records_total[15m])) > {LOST_RECORDS}",
            severity="ticket",
            summary="{{ $value | humanize }} steps and events of runs were lost in a quarter of an hour: "
            "{{ $labels.reason }}",
            description="They will not come any more: curves have gaps, and verdicts did not see them. The run's page "
            "says which run it is, ammeter_agent_lost_records_total by run and reason.",
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
