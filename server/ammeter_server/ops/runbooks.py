"""GET /runbooks/ and /runbooks/{verdict}: first steps for a verdict or an alert, for the person on call.

/runbooks/checklist is for problems without a runbook. No authentication is needed.
"""

from __future__ import annotations

from functools import cache
from html import escape

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markdown_it import MarkdownIt
from markupsafe import Markup

from ammeter.verdicts import ALL
from ammeter_server import web
from ammeter_server.http.problems import Problem
from ammeter_server.incidents import runbook_text

router = APIRouter(tags=["runbooks"])

OF_ALERTS = {
    "watchdog": "The watchdog is silent",
    "collector-down": "The collector is down",
    "replica-down": "One of several collectors is down",
    "scrape-absent": "No scrape job for the collectors",
    "ingest-failing": "The collector rejects data of runs",
    "judge-lag": "Runs are not judged",
    "disk-full": "The database's disk is nearly full",
    "disk-fills": "The database's disk fills",
    "delivery-failing": "Notifications do not arrive",
    "verdict-faults": "A verdict failed",
    "limits-hit": "A limit rejects requests",
    "records-lost": "Records of runs are lost",
    "ingest-lag": "Runs are behind with sending",
    "delivery-stuck": "Notifications are stuck",
    "runs-failed": "Too many runs fail",
    "runs-objective-missed": "Runs have failed for days",
    "steps-skipped": "Too many steps are skipped",
    "runs-diverged": "Too many runs diverge",
    "divergence-objective-missed": "Runs have diverged for days",
    "validation-objective-missed": "Validations have been worse for days",
    "time-objective-missed": "Runs have taken too long for days",
    "steps-objective-missed": "Steps have been skipped for days",
}
"""Titles of the alerts that only Prometheus raises; see prometheus_rules.py and prometheus/slo.py."""

TITLES = {
    **{verdict.id: verdict.title for verdict in ALL},
    **OF_ALERTS,
    "checklist": "Checklist for an unknown problem",
}
"""Titles of all pages."""


@router.get("/runbooks/", response_class=HTMLResponse, summary="Index of all runbooks")
def read_index() -> HTMLResponse:
    """Returns the list of all runbooks as a page."""
    return web.article("Runbooks", Markup(index("/runbooks/{}")))


def index(address: str) -> str:
    """Returns a list of all runbooks as HTML. `address` is that of a runbook, with {} for its name."""
    links = (f'<li><a href="{address.format(name)}">{escape(title)}</a></li>' for name, title in TITLES.items())
    return "<h1>Runbooks</h1>\n<ul>\n" + "\n".join(links) + "\n</ul>"


@router.get("/runbooks/{verdict}", response_class=HTMLResponse, summary="Runbook of a verdict or an alert")
def read_runbook(verdict: str) -> HTMLResponse:
    """Returns the runbook of a verdict or of an alert of Prometheus as a page.

    `checklist` is the general one. Status 404 if there is no such page.
    """
    if verdict not in TITLES:
        raise Problem(404, f"there is no verdict {verdict[:80]!r}; there are {', '.join(TITLES)}")
    return web.article(TITLES[verdict], rendered(verdict))


@cache
def rendered(verdict: str) -> Markup:
    """The Markdown as HTML; HTML inside it is displayed as text."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    html = renderer.render(runbook_text.text(verdict))
    return Markup(html.replace("<th></th>", "<td></td>"))  # Markdown has no table without a head
