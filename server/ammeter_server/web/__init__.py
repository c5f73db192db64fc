"""The web page: what a person sees of a run. Templates are a frame; the scripts fill it from the read API.

Everything that comes from a run is data: templates escape, scripts set text, and the policy allows no inline code.
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
    """One run. Whether it exists is asked by its script, so that sign-in is the same everywhere."""
    return HTMLResponse(_templates.get_template("run.html").render(title="Run", run=run))


@router.get("/runs/{run}/compare")
def choose_baseline(run: str) -> HTMLResponse:
    """The runs that one can be compared with."""
    return show_comparison(run, "")


@router.get("/runs/{run}/compare/{baseline}")
def show_comparison(run: str, baseline: str) -> HTMLResponse:
    """Two runs side by side."""
    page = _templates.get_template("compare.html")
    return HTMLResponse(page.render(title="Compare", run=run, baseline=baseline))


def article(title: str, body: Markup) -> HTMLResponse:
    """A page of text in the house's frame. body: HTML that is already safe."""
    return HTMLResponse(_templates.get_template("article.html").render(title=title, body=body))
