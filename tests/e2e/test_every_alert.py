"""Every alert of the rule file fires and ends at a person's pager, through a real Prometheus and a real Alertmanager.

The rules are those that a real collector serves, with their own windows: promtool writes what was counted in the days
before into Prometheus' database. A server of the test supplies the present values. Only how long an
alert waits, and looks back within the hour, is shortened; alerts/tests has that.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ammeter.verdicts import ALL
from ammeter_server.incidents.runbook_text import alert_name
from tests.alerting import Pager, Prometheus, alertmanager, replaced, shipped, until
from tests.e2e.processes import Collector
from tests.parts import need

pytestmark = pytest.mark.long

DISK = 10**12
"""Bytes of the disk that the database lies on."""

EVERY = 300
DAYS = 3
SOONER = {
    "group_wait: 30s": "group_wait: 1s",
    "group_interval: 5m": "group_interval: 2s",
    "group_interval: 1m": "group_interval: 2s",
}

WATCHDOG = "AmmeterWatchdog"
RECEIVERS = {"none": "watchdog"}
REPLICA_DOWN = "AmmeterReplicaDown"
UNSCRAPED = {"AmmeterCollectorDown", "AmmeterScrapeAbsent"}
"""Which fire only where one of the scrape jobs is missing; the replica's, where they are there."""

RESEND = "--rules.alert.resend-delay=1s"
"""What fires at once when Prometheus starts is sent before it has found an Alertmanager, and again after this."""


@dataclass
class Counted:
    """One of the fleet's counters: how it grew in five minutes on all days before, and what it has come to."""

    project: str
    subject: str
    outcome: str
    growth: int
    value: int = 0

    @property
    def series(self) -> str:
        return f'ammeter_fleet_{self.subject}_total{{project="{self.project}",outcome="{self.outcome}"}}'


BURNING = {
    "AmmeterRunsFailed": ("runs", "ended", "lost", 25),
    "AmmeterRunsObjectiveMissed": ("runs", "ended", "failed", 7),
    "AmmeterRunsDiverged": ("runs", "ended", "diverged", 10),
    "AmmeterDivergenceObjectiveMissed": ("runs", "ended", "diverged", 3),
    "AmmeterValidationObjectiveMissed": ("validations", "held", "drifted", 10),
    "AmmeterTimeObjectiveMissed": ("times", "expected", "late", 20),
    "AmmeterStepsSkipped": ("steps", "applied", "skipped", 3),
    "AmmeterStepsObjectiveMissed": ("steps", "applied", "skipped", 1.5),
}
"""Alert -> what is counted, its good and its bad outcome, percent of bad ones; each in a project of its own."""


def days_before() -> list[Counted]:
    found = []
    for alert, (subject, good, bad, percent) in BURNING.items():
        share = round(10 * percent)
        found += [Counted(alert, subject, good, 1000 - share), Counted(alert, subject, bad, share)]
    return found


class Fleet:
    """/metrics and /metrics/self of a collector with which everything is wrong, until it is mended."""

    def __init__(self) -> None:
        self.is_broken = True
        self.counted = days_before()
        self.taken = self.refused = 0
        fleet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = (fleet.own() if self.path == "/metrics/self" else fleet.runs()).encode()
                is_down = fleet.is_broken and self.headers["Host"].startswith("localhost")
                self.send_response(503 if is_down else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def runs(self) -> str:
        """An incident of each verdict, each in a run of its own, a run that is behind, and the fleet's counters."""
        lines = [
            f'ammeter_incident_active{{run="run-of-{verdict.id}",project="speech",verdict="{verdict.id}",'
            f'severity="{verdict.severity}"}} {int(self.is_broken)}'
            for verdict in ALL
        ]
        lines.append(f'ammeter_agent_journal_bytes{{run="behind"}} {2**28 if self.is_broken else 0}')
        lines += [f"{series.series} {series.value}" for series in self.counted]
        return "\n".join(lines) + "\n"

    def own(self) -> str:
        if self.is_broken:
            self.refused += 10
        else:
            self.taken += 100_000
        free = DISK // 100 - self.refused * 10**5 if self.is_broken else DISK
        return (
            f"ammeter_collector_outbox_pending {3 if self.is_broken else 0}\n"
            f"ammeter_collector_judge_lag_seconds {500 if self.is_broken else 1}\n"
            f"ammeter_collector_storage_disk_bytes {DISK}\n"
            f"ammeter_collector_storage_disk_free_bytes {free}\n"
            f'ammeter_collector_ingest_requests_total{{code="200"}} {self.taken}\n'
            f'ammeter_collector_ingest_requests_total{{code="507"}} {self.refused}\n'
            f'ammeter_collector_deliveries_total{{channel="chat",outcome="sent"}} {self.taken}\n'
            f'ammeter_collector_deliveries_total{{channel="chat",outcome="failed"}} {self.refused}\n'
            f'ammeter_collector_verdict_faults_total{{verdict="run-lost"}} {self.refused}\n'
            f'ammeter_collector_limited_total{{limit="requests"}} {self.refused}\n'
            f'ammeter_collector_lost_records_total{{reason="torn"}} {100 * self.refused}\n'
        )

    def mend(self) -> None:
        """Everything is well, and so much ends well that what was does not matter any more."""
        self.is_broken = False
        for series in self.counted:
            if series.outcome in ("ended", "applied", "held", "expected"):
                series.value += 10**9

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def write_days_before(fleet: Fleet, prometheus: Prometheus, folder: Path) -> None:
    """What the fleet counted in the last days, into Prometheus' database."""
    now = int(time.time()) - 5
    lines = []
    for subject in ("runs", "validations", "times", "steps"):
        lines.append(f"# TYPE ammeter_fleet_{subject} counter")
        for series in (series for series in fleet.counted if series.subject == subject):
            for place in range(DAYS * 86400 // EVERY + 1):
                series.value = series.growth * place
                lines.append(f"{series.series} {series.value} {now - DAYS * 86400 + place * EVERY}")
    (folder / "days-before").write_text("\n".join([*lines, "# EOF", ""]))
    words = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "days-before"), str(prometheus.data)]
    subprocess.run([need("promtool"), *words], check=True, capture_output=True, timeout=120)


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[str]:
    """As a real collector serves them."""
    collector = Collector(tmp_path).start()
    yield httpx.get(f"{collector.url}/api/v1/rules", timeout=30).text
    collector.stop()


def test_every_alert_fires_and_ends_at_the_pager_with_a_runbook_that_answers(rules: str, tmp_path: Path) -> None:
    named = [rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"] if "alert" in rule]
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in named}
    severities |= {alert_name(verdict.id): verdict.severity for verdict in ALL}
    with ExitStack() as stack:
        fleet = Fleet()
        stack.callback(fleet.stop)
        running, pager = stack.enter_context(alertmanager(tmp_path / "alertmanager", SOONER))
        configuration = shipped(fleet.port, running.port)
        names = ("ammeter", "ammeter-collector")
        unnamed = replaced(configuration, {f"job_name: {name}\n": f"job_name: another-{name}\n" for name in names})
        sooner = re.sub(r"\[(15m|1h)\]", "[15s]", re.sub(r"for: \d+m", "for: 1s", rules))
        prometheus = Prometheus(tmp_path / "prometheus", unnamed, sooner, RESEND)
        write_days_before(fleet, prometheus, tmp_path)
        prometheus.start()
        stack.callback(prometheus.stop)

        every = set(severities)
        first = every - {REPLICA_DOWN}
        until(
            lambda: alerts_with(pager, "firing") == first,
            "all fire",
            explain=lambda: first - alerts_with(pager, "firing"),
        )
        named_too = replaced(unnamed, {"scrape_configs:": f"scrape_configs:\n{jobs(fleet.port)}"})
        prometheus.configure(named_too)
        second = every - UNSCRAPED
        until(
            lambda: alerts_with(pager, "firing") == second,
            "one is down",
            explain=lambda: alerts_with(pager, "firing") ^ second,
        )
        fleet.mend()
        over = every - {WATCHDOG}
        until(
            lambda: alerts_with(pager, "resolved") == over,
            "all are over",
            explain=lambda: over - alerts_with(pager, "resolved"),
        )
        assert {WATCHDOG} == alerts_with(pager, "firing")

    paths = {notification.group["alertname"]: notification.path for notification in pager.notifications}
    assert {name: f"/{RECEIVERS.get(severity, severity)}" for name, severity in severities.items()} == paths
    for alert in (alert for notification in pager.notifications for alert in notification.alerts):
        assert alert["annotations"]["first_steps"].startswith("1. "), alert["labels"]
    for url in {
        alert["annotations"]["runbook_url"] for notification in pager.notifications for alert in notification.alerts
    }:
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert 200 == answer.status


def jobs(port: int) -> str:
    """Of two collectors, one of which does not answer while it is broken."""
    both = f"[127.0.0.1:{port}, localhost:{port}]"
    return (
        f"  - job_name: ammeter\n    static_configs:\n      - targets: [127.0.0.1:{port}]\n"
        f"  - job_name: ammeter-collector\n    metrics_path: /metrics/self\n"
        f"    static_configs:\n      - targets: {both}\n"
    )


def alerts_with(pager: Pager, status: str) -> set[str]:
    """The alerts whose state a person knows to be this; those on an objective of their own project."""
    last_status = {}
    for notification in pager.notifications:
        name = notification.group["alertname"]
        if name not in BURNING or notification.group["project"] == name:
            last_status[name] = notification.status
    return {name for name, last in last_status.items() if last == status}
