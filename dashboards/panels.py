"""How a chart becomes a Grafana panel: one look for all boards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, table, timeseries
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
CHOSEN = 'run=~"$run"'
WIDTH, HEIGHT = 12, 8


@dataclass(frozen=True)
class Chart:
    """One panel over time. queries: (expression, legend). log: base of a logarithmic axis."""

    title: str
    description: str
    unit: str
    queries: Sequence[tuple[str, str]]
    log: int = 0
    bars: bool = False


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def panel_of(chart: Chart) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(chart.title)
        .description(chart.description)
        .datasource(SOURCE)
        .unit(chart.unit)
        .span(WIDTH)
        .height(HEIGHT)
        .line_width(1)
        .fill_opacity(0)
        .axis_placement(AxisPlacement.LEFT)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if chart.log:
        panel = panel.scale_distribution(
            common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(float(chart.log))
        )
    if chart.bars:
        panel = panel.draw_style(GraphDrawStyle.BARS).fill_opacity(60)
    for letter, (expression, legend) in zip("ABCDEF", chart.queries, strict=False):
        query = prometheus.Dataquery().ref_id(letter).datasource(SOURCE)
        panel = panel.with_target(query.expr(expression).legend_format(legend))
    return panel


def table_of(title: str, description: str, expression: str) -> table.Panel:
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit("short")
        .span(WIDTH)
        .height(HEIGHT)
        .with_target(
            prometheus.Dataquery()
            .ref_id("A")
            .datasource(SOURCE)
            .expr(expression)
            .format(PromQueryFormat.TABLE)
            .instant()
        )
        .with_transformation(DataTransformerConfig("organize", options={"excludeByName": {"Time": True}}))
    )
