"""Builds boards from rows of panels.

A panel is left out until the collector exports its metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import Dashboard, DashboardCursorSync, DashboardLinkType, Panel, RowPanel

from ammeter_server.process import self_metrics
from ammeter_server.prometheus.metrics import METRICS, PROCESS_METRICS
from dashboards import variables
from dashboards.grafana import panel_of
from dashboards.panels import Shown
from dashboards.promql import PROJECTS
from dashboards.scraped import UP

METRIC = re.compile(r"\bammeter_\w+")

Variable = dashboard.QueryVariable | dashboard.TextBoxVariable


@dataclass(frozen=True)
class Board:
    """The content of a board.

    name: of its file and its address. rows: (title, panels); the row without a title is on top, below the panels that
    show whether the collector answers. folded: titles of the rows that are closed at first. incidents: labels of the
    incidents that its charts mark.
    """

    name: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[tuple[str, Sequence[Shown]]]
    since: str = "now-1h"
    refresh: str = "10s"
    folded: Sequence[str] = ()
    incidents: str = PROJECTS


def built(board: Board) -> Dashboard:
    """Builds the Grafana board. Links use panel ids; Grafana assigns the id of the board."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(f"ammeter-{board.name}")
        .description(board.description)
        .tags(["ammeter"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh(board.refresh)
        .time(board.since, "now")
        .link(
            dashboard.DashboardLink("Other boards")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["ammeter"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in (variables.projects(), *board.variables, variables.collector()):
        builder = builder.with_variable(variable)
    for title, panels in (("", UP), *board.rows):
        ready = [panel for panel in panels if not awaited(panel)]
        row = dashboard.Row(title).collapsed(title in board.folded)
        if title in board.folded:
            for shown in ready:
                row = row.with_panel(panel_of(shown))
        if title and ready:
            builder = builder.with_row(row)
        if title not in board.folded:
            for shown in ready:
                builder = builder.with_panel(panel_of(shown))
    finished = builder.build()
    _close_gaps(finished)
    for number, panel in enumerate(_every(finished), start=1):
        panel.id_val = number
    return finished


def _close_gaps(finished: Dashboard) -> None:
    """Moves everything below a closed row up by the height of its panels, where Grafana shows it."""
    closed = 0
    for panel in finished.panels or ():
        assert panel.grid_pos is not None
        top = panel.grid_pos.y
        panel.grid_pos.y -= closed
        if isinstance(panel, RowPanel) and panel.panels:
            places = [inside.grid_pos for inside in panel.panels if inside.grid_pos is not None]
            bottom = max(place.y + place.h for place in places)
            for place in places:
                place.y -= closed
            closed += bottom - top - 1


def _every(finished: Dashboard) -> Iterator[Panel | RowPanel]:
    """Yields rows and panels, those of closed rows too."""
    for panel in finished.panels or ():
        yield panel
        if isinstance(panel, RowPanel):
            yield from panel.panels


def awaited(shown: Shown) -> set[str]:
    """Returns the metrics in the panel's queries that the collector does not export yet."""
    return {name for query, _ in shown.queries for name in METRIC.findall(query)} - exported()


def exported() -> set[str]:
    """Returns every name that a query may use."""
    own = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in self_metrics.REGISTRY.collect()
    }
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    histograms |= {family.name for family in self_metrics.REGISTRY.collect() if family.type == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    return {metric.name for metric in (*METRICS, *PROCESS_METRICS)} | own | parts
