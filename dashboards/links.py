"""Links from boards to the collector's pages and to other boards, which keep time and variables."""

from __future__ import annotations

from typing import Any

from dashboards.promql import open_incidents_named, while_up

KEPT = "${datasource:queryparam}&${project:queryparam}&${__url_time_range}"
"""What another board takes over."""

COLLECTOR = "${collector}"
"""The variable with the collector's address."""


def debug_board(run: str) -> tuple[str, str]:
    """Returns title and address of the debug board for one run."""
    return "Debug board", f"/d/ammeter-debug?{KEPT}&var-run={run}"


def run_page(run: str) -> tuple[str, str]:
    """Returns title and address of the run's page on the collector."""
    return "Page of the run", f"{COLLECTOR}/runs/{run}"


CELL, LINE = "${__data.fields.run}", "${__field.labels.run}"
"""The run of a row of a table, and of a line of a chart."""

OF_RUN = (run_page(CELL), debug_board(CELL))
OF_LINE = (run_page(LINE), debug_board(LINE))
OF_VERDICT = (("Runbook", f"{COLLECTOR}/runbooks/${{__data.fields.verdict}}"),)
OF_BASELINE = (
    ("Compare both", f"/d/ammeter-compare?{KEPT}&var-run={CELL}&var-other=${{__data.fields.baseline}}"),
    ("Page of the baseline", f"{COLLECTOR}/runs/${{__data.fields.baseline}}"),
)

INCIDENT_LINKS = {"name": OF_RUN, "run": OF_RUN, "verdict": OF_VERDICT}
INCIDENT_COLUMNS = ("severity", "verdict", "name", "project", "run")


def incidents(labels: str, source: str) -> list[dict[str, Any]]:
    """Returns the annotations of a board: the time for which each incident is open.

    They are plain JSON: grafana-foundation-sdk does not know the fields of Prometheus' annotations.
    """
    expression = while_up(open_incidents_named(labels))
    common = {
        "datasource": {"type": "prometheus", "uid": source},
        "enable": True,
        "titleFormat": "{{verdict}}",
        "textFormat": "{{severity}} of {{name}} {{run}}",
        "tagKeys": "severity",
        "useValueForTime": False,
    }
    return [
        {
            **common,
            "name": name,
            "iconColor": colour,
            "expr": expression.replace("ammeter_incident_active{", f'ammeter_incident_active{{severity="{severity}",'),
        }
        for name, severity, colour in (("Incidents that page", "page", "red"), ("Tickets", "ticket", "orange"))
    ]
