"""Converts chart descriptions to Grafana panels with one appearance for all boards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
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
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.promql import while_up

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HALF_WIDTH, FULL_WIDTH, SIXTH_WIDTH = 12, 24, 4
"""Widths in columns of Grafana's grid of 24."""
TALL_ROWS, LOW_ROWS = 8, 4

Queries = Sequence[tuple[str, str]]
"""(expression, legend)."""

NO_DATA = "no data: the collector is down"
"""Shown in panels that have a number whenever the collector answers."""

NO_ROWS = "none if the collector responds, otherwise unknown"
"""Shown in tables and charts where an empty result may be good news."""

AnyPanel = timeseries.Panel | stat.Panel | table.Panel


@dataclass(frozen=True)
class Chart:
    """A time series.

    log: base of a logarithmic axis. missing: text while there is no data.
    """

    title: str
    description: str
    unit: str
    queries: Queries
    log: int = 0
    bars: bool = False
    missing: str = ""
    width: int = HALF_WIDTH


@dataclass(frozen=True)
class Figure:
    """A number, or one per series, of now or of the displayed time range.

    words: text and colour in place of a number. limits: colours, each with the value from which it applies; None for
    the lowest.
    """

    title: str
    description: str
    unit: str
    queries: Queries
    missing: str = ""
    width: int = SIXTH_WIDTH
    height: int = LOW_ROWS
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    limits: Sequence[tuple[float | None, str]] = ()


@dataclass(frozen=True)
class Listing:
    """A table with one row per series and its labels.

    value: title of the value column.
    """

    title: str
    description: str
    unit: str
    value: str
    queries: Queries
    missing: str = ""
    width: int = HALF_WIDTH
    height: int = TALL_ROWS


Shown = Chart | Figure | Listing


def variable(name: str, label: str, query: str, *, multiple: bool = True) -> dashboard.QueryVariable:
    """Creates a variable with the values of a label. several: allow several values and All."""
    builder = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(multiple)
        .include_all(multiple)
    )
    return builder.all_value(".*") if multiple else builder


def panel_of(shown: Shown) -> AnyPanel:
    """Builds the panel, without its position on the board."""
    if isinstance(shown, Chart):
        return _chart(shown)
    return _figure(shown) if isinstance(shown, Figure) else _listing(shown)


def _chart(chart: Chart) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(chart.title)
        .description(chart.description)
        .datasource(SOURCE)
        .unit(chart.unit)
        .no_value(_missing(chart, NO_ROWS))
        .span(chart.width)
        .height(TALL_ROWS)
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
        axis = common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(float(chart.log))
        panel = panel.scale_distribution(axis)
    if chart.bars:
        panel = panel.draw_style(GraphDrawStyle.BARS).fill_opacity(60)
    for query in _queries(chart.queries):
        panel = panel.with_target(query)
    return panel


def _figure(figure: Figure) -> stat.Panel:
    panel = (
        stat.Panel()
        .title(figure.title)
        .description(figure.description)
        .datasource(SOURCE)
        .unit(figure.unit)
        .no_value(_missing(figure, NO_DATA))
        .span(figure.width)
        .height(figure.height)
        .color_mode(BigValueColorMode.NONE)
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(BigValueTextMode.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if figure.words:
        panel = panel.mappings([ValueMap(options=_results(figure.words))]).color_mode(BigValueColorMode.BACKGROUND)
    if figure.limits:
        steps = [Threshold(value=value, color=colour) for value, colour in figure.limits]
        limits = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
        panel = panel.thresholds(limits).color_mode(BigValueColorMode.VALUE)
    for query in _queries(figure.queries):
        panel = panel.with_target(query.instant())
    return panel


def _listing(listing: Listing) -> table.Panel:
    panel = (
        table.Panel()
        .title(listing.title)
        .description(listing.description)
        .datasource(SOURCE)
        .unit(listing.unit)
        .no_value(_missing(listing, NO_ROWS))
        .span(listing.width)
        .height(listing.height)
        .with_transformation(
            DataTransformerConfig(
                "organize", options={"excludeByName": {"Time": True}, "renameByName": {"Value": listing.value}}
            )
        )
    )
    for query in _queries(listing.queries):
        panel = panel.with_target(query.format(PromQueryFormat.TABLE).instant())
    return panel


def _missing(shown: Shown, otherwise: str) -> str:
    """Returns the text of an empty panel.

    If the query only has data while the collector answers, the text mentions that the collector may be down: no other
    reason may then be given as certain.
    """
    depends_on_collector = any(while_up(expression) != expression for expression, _ in shown.queries)
    return (
        f"{shown.missing}, or the collector is down"
        if shown.missing and depends_on_collector
        else shown.missing or otherwise
    )


def _results(words: Mapping[str, tuple[str, str]]) -> dict[str, ValueMappingResult]:
    return {value: ValueMappingResult(text=text, color=colour) for value, (text, colour) in words.items()}


def _queries(queries: Queries) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(while_up(expression)).legend_format(legend)
        for letter, (expression, legend) in zip("ABCDEF", queries, strict=False)
    ]
