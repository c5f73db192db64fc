"""The web page: static templates, which scripts fill from the read API.

All content of a run is data: templates escape it, scripts insert it as text, and the security policy allows no inline
code.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.staticfiles import StaticFiles

HERE = Path(__file__).parent

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
static = StaticFiles(directory=HERE / "static")

_templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined)


@router.get("/")
def show_runs() -> HTMLResponse:
    """The list of runs."""
    return HTMLResponse(_templates.get_template("runs.html").render(title="Runs"))


@router.get("/runs/{run}")
def show_run(run: str) -> HTMLResponse:
    """One run. Its script checks whether it exists, so that sign-in works the same everywhere."""
    return HTMLResponse(_templates.get_template("run.html").render(title="Run", run=run))


@router.get("/runs/{run}/compare")
def choose_baseline(run: str) -> HTMLResponse:
    """The runs that can be compared with this run."""
    return show_comparison(run, "")


@router.get("/runs/{run}/compare/{baseline}")
def show_comparison(run: str, baseline: str) -> HTMLResponse:
    """Two runs side by side."""
    page = _templates.get_template("compare.html")
    return HTMLResponse(page.render(title="Compare", run=run, baseline=baseline))


@router.get("/incidents")
def show_incidents() -> HTMLResponse:
    """Incidents of all runs."""
    return HTMLResponse(_templates.get_template("incidents.html").render(title="Incidents"))


@router.get("/alerts")
def show_alerts() -> HTMLResponse:
    """The channels of notifications and their deliveries."""
    return HTMLResponse(_templates.get_template("alerts.html").render(title="Alerts"))


@router.get("/compare")
def compare_runs() -> HTMLResponse:
    """Several runs side by side. Its script reads their ids from the address."""
    return HTMLResponse(_templates.get_template("compare_runs.html").render(title="Compare runs"))


@router.get("/projects/{project:path}")
def show_project(project: str) -> HTMLResponse:
    """A project: report, readiness, baselines. Its script checks whether it exists."""
    return HTMLResponse(_templates.get_template("project.html").render(title="Project", project=project))


def article(title: str, body: Markup) -> HTMLResponse:
    """A page of text in the common template.

    Args:
        body: HTML that is already safe.
    """
    return HTMLResponse(_templates.get_template("article.html").render(title=title, body=body))
