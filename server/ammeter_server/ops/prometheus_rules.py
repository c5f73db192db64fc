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
from ammeter_server.incidents.runbook_text import alert_name
from ammeter_server.incidents.verdict_classes import class_of
from ammeter_server.prometheus import slo
from ammeter_server.prometheus.rule_types import Alert
from ammeter_server.prometheus.slo import Objective

router = APIRouter(tags=["metrics"])

DEFAULT_URL = "http://127.0.0.1:8480"
DEFAULT_LINKS = Links(DEFAULT_URL)
HEAD = "# Generated: python -m ammeter_server.ops.prometheus_rules > alerts/ammeter.rules.yaml\n"


LAGGING_BYTES = 64 * 2**20
"""Bytes of unsent journal of a run that raise an alert. From 256 MiB per rank on, the agent keeps only every tenth
step, then fewer."""


REMEMBERED_TIME = "5m"
"""How long an incident stays active without a sample: a failed scrape must not end it and page again. A closed incident
is exposed with 0 for as long."""

LINGER_TIME = "1m"
"""How long an incident alert fires on after its expression is no longer true. It equals Alertmanager's wait before the
next change of a group, so that an incident that returns within a minute is not a new page."""

NO_SCRAPE = 'absent(up{job="ammeter"} == 1)'
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
    for objective in wanted:
        recorded = [recording.rule() for recording in slo.recordings(objective)]
        rules[f"ammeter-{objective.name}"] = [*recorded, *(alert.rule(links) for alert in slo.alerts(objective))]
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
    active = f'last_over_time(ammeter_incident_active{{verdict="{verdict.id}"}}[{REMEMBERED_TIME}])'
    fired = f'ALERTS{{alertname="{alert_name(verdict.id)}",alertstate="firing"}}'
    return Alert(
        id=verdict.id,
        expr=f"max by ({labels}) ({active}) == 1 or "
        f"(max by ({labels}) ({fired}) and on () {NO_SCRAPE} unless max by ({labels}) ({active}) == 0)",
        severity="{{ $labels.severity }}",
        summary=f"{verdict.title}: run {{{{ $labels.run }}}} of project {{{{ $labels.project }}}}",
        description=f"{verdict.question} Yes. The run's page has cause and fix: {links.run('{{ $labels.run }}')}",
        linger=LINGER_TIME,
        labels={"run": "{{ $labels.run }}", "class": class_of(verdict.id)},
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
            summary="Prometheus and Alertmanager deliver alerts of Ammeter",
            description="Always fires, and shows that alerts arrive. An external service receives it every minute and "
            "pages when it stops: nothing else reports that Prometheus or Alertmanager is down.",
        ),
        Alert(
            id="collector-down",
            expr=NO_SCRAPE,
            wait="2m",
            severity="page",
            summary="Prometheus receives no metrics from any Ammeter collector",
            description="The collector is down or frozen, its database is down, its address or token is wrong, or no "
            "scrape job is called ammeter. Training runs continue and keep their journals, but nobody is notified of "
            "a broken run until a collector works. Then agents send their journals. First step: curl the collector's "
            "/livez and /readyz.",
        ),
        Alert(
            id="replica-down",
            expr=f'up{{job="ammeter-collector"}} == 0 unless on () {NO_SCRAPE}',
            wait="2m",
            severity="ticket",
            summary="The Ammeter collector at {{ $labels.instance }} does not answer; another one does",
            description="The other collectors judge runs and send notifications. If they fail too, nobody is notified "
            "of a broken run. First step: read the log of this collector and start it again.",
        ),
        Alert(
            id="scrape-absent",
            expr='absent(up{job="ammeter-collector"})',
            wait="5m",
            severity="ticket",
            summary="Prometheus has no scrape job called ammeter-collector",
            description="Without it, alerts on the collector itself cannot fire: a disk that fills, rejected batches, "
            "failed notifications. First step: add a scrape job named ammeter-collector for /metrics/self of each "
            "collector.",
        ),
        Alert(
            id="ingest-failing",
            expr='sum(rate(ammeter_collector_ingest_requests_total{code=~"5.."}[5m])) '
            '> 0.5 * sum(rate(ammeter_collector_ingest_requests_total{code=~"[25].."}[5m]))',
            wait="5m",
            severity="page",
            summary="The Ammeter collector rejects more than half of the requests of runs",
            description="It answers them with server errors, because of a full disk, a database that is down, or too "
            "much load. Agents keep the data and send it again; meanwhile nobody is notified of a broken run. First "
            "step: read the collector's log, GET /readyz, and the free space on its disk.",
        ),
        Alert(
            id="judge-lag",
            expr=f"min(ammeter_collector_judge_lag_seconds) > {JUDGE_LAG_SECONDS}",
            wait="2m",
            severity="page",
            summary="The Ammeter collector has not judged runs for {{ $value | humanizeDuration }}",
            description="The collector accepts data of runs but does not judge them, so no incident opens and nobody "
            "is notified. First step: search the collector's log for runs that could not be judged.",
        ),
        Alert(
            id="disk-full",
            expr="min by (instance) (ammeter_collector_storage_disk_free_bytes / ammeter_collector_storage_disk_bytes) "
            f"< {FREE_RATIO_PAGE}",
            wait="2m",
            severity="page",
            summary="Only {{ $value | humanizePercentage }} of the disk of the Ammeter collector's database is free",
            description="When it is full, the collector rejects data of runs with 507, journals grow on the training "
            "hosts, and nobody is notified of a broken run. First step: run `ammeter-server storage`.",
        ),
        Alert(
            id="disk-fills",
            expr="min by (instance) (predict_linear(ammeter_collector_storage_disk_free_bytes[6h], 86400)) < 0 "
            "and min by (instance) (ammeter_collector_storage_disk_free_bytes / ammeter_collector_storage_disk_bytes) "
            f"< {FREE_RATIO}",
            wait="30m",
            severity="ticket",
            summary="The disk of the Ammeter collector's database will be full within a day",
            description="This follows from its free space over the last six hours. First step: run "
            "`ammeter-server storage`, which lists the size of tables, days and runs. AMMETER_SERVER_KEEP_DAYS and "
            "AMMETER_SERVER_KEEP_BYTES limit the database.",
        ),
        Alert(
            id="delivery-failing",
            expr='sum by (channel) (increase(ammeter_collector_deliveries_total{outcome="failed"}[15m])) '
            f"> {FAILED_DELIVERIES} unless on (channel) "
            '(sum by (channel) (increase(ammeter_collector_deliveries_total{outcome="sent"}[15m])) > 0)',
            severity="page",
            summary="Ammeter cannot deliver notifications through {{ $labels.channel }}",
            description="Every attempt of the last quarter of an hour failed, so the receivers of this channel are not "
            "notified of broken runs. The collector retries for a day. First step: search the collector's log for the "
            "channel's answer.",
        ),
        Alert(
            id="verdict-faults",
            expr="sum by (verdict) (increase(ammeter_collector_verdict_faults_total[1h])) > 0",
            severity="ticket",
            summary="The verdict {{ $labels.verdict }} failed because of a bug in Ammeter",
            description="The verdict is switched off for the affected streams, so this problem is not detected there; "
            "everything else continues. First step: report the error from the run's page.",
        ),
        Alert(
            id="limits-hit",
            expr="sum by (limit) (increase(ammeter_collector_limited_total[15m])) > 0",
            wait="5m",
            severity="ticket",
            summary="The limit {{ $labels.limit }} of the Ammeter collector rejects requests",
            description="A client sends or requests more than the limit allows. Rejected data of a run is missing or "
            "late. First step: read the collector's log: batch.refused has the run of a sender, request.refused the "
            "reason.",
        ),
        Alert(
            id="records-lost",
            expr=f"sum by (reason) (increase(ammeter_collector_lost_records_total[15m])) > {LOST_RECORDS}",
            severity="ticket",
            summary="{{ $value | humanize }} steps and events of runs were lost in a quarter of an hour: "
            "{{ $labels.reason }}",
            description="They cannot be recovered: curves have gaps, and verdicts did not see them. First step: find "
            "the runs with ammeter_agent_lost_records_total by run and reason.",
        ),
        Alert(
            id="ingest-lag",
            expr=f"count(max by (run) (ammeter_agent_journal_bytes) > {LAGGING_BYTES})",
            wait="10m",
            severity="ticket",
            summary="Runs with more than 64 MiB of unsent journal for ten minutes: {{ $value }}",
            description="The web page and the alerts show these runs late. From 256 MiB per rank on, agents keep only "
            "some of the steps. First step: check whether the collector or the network is too slow, with "
            "ammeter_agent_journal_bytes by run and ammeter_collector_ingest_duration_seconds per batch.",
        ),
        Alert(
            id="delivery-stuck",
            expr="max(ammeter_collector_outbox_pending) > 0",
            wait="10m",
            severity="ticket",
            summary="Notifications that have not been delivered for ten minutes: {{ $value }}",
            description="A channel does not accept them, so somebody was not notified of a run. The collector retries "
            "for a day. First step: search the collector's log for the channel's answer, and compare "
            "ammeter_collector_deliveries_total by channel and outcome.",
        ),
    ]


if __name__ == "__main__":
    print(rule_file(), end="")
