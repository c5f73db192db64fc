"""Converts what a board says of its panels to Grafana panels with one appearance for all boards."""

from __future__ import annotations

from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphDrawStyle,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardSpecialValueMapOptions,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards import links
from dashboards.panels import (
    COLOURS,
    TALL_ROWS,
    Chart,
    Distribution,
    Figure,
    Limits,
    Links,
    Listing,
    Queries,
    Shown,
)
from dashboards.promql import RUN, while_up
from dashboards.variables import SOURCE

NO_DATA = "no data: the collector is down"
"""Shown in panels that have a number whenever the collector answers."""

NO_ROWS = "none if the collector responds, otherwise unknown"
"""Shown in tables and charts where an empty result may be good news."""

COUNTS = ("none", "cpm")
"""Units of charts whose axis reaches 1 while everything is 0."""

COLUMN_WIDTHS = {"severity": 90, "project": 150, "run": 320, "baseline": 320}
"""In pixels; the other columns share the rest."""

HEADINGS = {"torch_version": "PyTorch", "device_model": "Device"}
"""Titles of columns that are not the name of their label."""

SEVERITIES = {"page": ("page", "red"), "ticket": ("ticket", "orange")}


class _Heatmap(heatmap.Panel):
    """A heatmap with a tooltip as Grafana knows it since 10.3: the SDK has the fields of before."""

    def build(self) -> Any:
        panel: Any = super().build()
        panel.options.tooltip = {"mode": "single", "yHistogram": True}
        return panel


class _Table(table.Panel):
    """A table without the footer's options, which Grafana has no longer."""

    def build(self) -> Any:
        panel: Any = super().build()
        panel.options.footer = None
        return panel


AnyPanel = timeseries.Panel | stat.Panel | table.Panel | heatmap.Panel
Built = TypeVar("Built", timeseries.Panel, stat.Panel, table.Panel, heatmap.Panel)


def panel_of(shown: Shown) -> AnyPanel:
    """Builds the panel, without its position on the board."""
    if isinstance(shown, Chart):
        return _chart(shown)
    if isinstance(shown, Distribution):
        return _distribution(shown)
    return _figure(shown) if isinstance(shown, Figure) else _listing(shown)


def _chart(chart: Chart) -> timeseries.Panel:
    panel = (
        _common(timeseries.Panel(), chart, NO_ROWS, TALL_ROWS)
        .line_width(1)
        .fill_opacity(0)
        .axis_placement(AxisPlacement.LEFT)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
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
    else:
        panel = panel.axis_soft_min(0)
    if chart.change:
        panel = panel.axis_soft_max(0)
    if chart.unit == "percentunit" and not chart.change:
        panel = panel.min(0).axis_soft_max(chart.soft_max) if chart.soft_max else panel.min(0).max(1)
    elif chart.unit in COUNTS and not chart.log:
        panel = panel.axis_soft_max(1)
        panel = panel.decimals(0) if chart.unit == "none" else panel
    if chart.bars:
        panel = panel.draw_style(GraphDrawStyle.BARS).fill_opacity(60)
    if chart.limits:
        is_lower = chart.change and chart.limits[0][1] == "red"
        mode = GraphTresholdsStyleMode.DASHED_AND_AREA if is_lower else GraphTresholdsStyleMode.DASHED
        style = common.GraphThresholdsStyleConfig().mode(mode)
        panel = panel.thresholds(_thresholds(chart.limits)).thresholds_style(style)
    if any(RUN in legend for _, legend in chart.queries):
        panel = panel.override_by_field_type("number", [_links(links.OF_LINE)])
    else:
        for word, colour in COLOURS.items():
            panel = panel.override_by_name(word, [_fixed(colour)])
    return _asking(panel, chart.queries)


def _figure(figure: Figure) -> stat.Panel:
    panel = (
        _common(stat.Panel(), figure, NO_DATA, figure.height)
        .color_mode(BigValueColorMode.NONE)
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(BigValueTextMode.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if figure.unit == "percentunit" and not figure.change:
        panel = panel.min(0).max(1)
    nothing = _nothing(_missing(figure, NO_DATA))
    if figure.words:
        panel = panel.mappings([_words(figure.words), nothing]).color_mode(BigValueColorMode.BACKGROUND)
    if figure.limits:
        panel = panel.mappings([nothing])
        panel = panel.thresholds(_thresholds(figure.limits)).color_mode(BigValueColorMode.VALUE)
    if any(RUN in legend for _, legend in figure.queries):
        panel = panel.override_by_field_type("number", [_links(links.OF_LINE)])
    for query in _queries(figure.queries):
        panel = panel.with_target(query.instant())
    return panel


def _listing(listing: Listing) -> table.Panel:
    order = {"Value": len(listing.columns), **{name: at for at, name in enumerate(listing.columns)}}
    excluded = {"Time": True} | ({} if listing.value else {"Value": True})
    renamed = {column: HEADINGS.get(column, column.replace("_", " ").capitalize()) for column in listing.columns}
    renamed |= {"Value": listing.value} if listing.value else {}
    organized = {"excludeByName": excluded, "indexByName": order, "renameByName": renamed}
    panel = (
        _common(_Table(), listing, NO_ROWS, listing.height)
        .show_header(True)
        .with_transformation(DataTransformerConfig("organize", options=organized))
    )
    for column, of_column in listing.links.items():
        panel = panel.override_by_name(column, [_links(of_column)])
    if "severity" in listing.columns:
        panel = panel.sort_by([common.TableSortByFieldState().display_name(renamed["severity"]).desc(False)])
        panel = panel.override_by_name(
            "severity",
            [
                DynamicConfigValue("mappings", [_words(SEVERITIES)]),
                DynamicConfigValue("custom.cellOptions", {"type": "color-background", "mode": "basic"}),
            ],
        )
    for column in (column for column in listing.columns if column in COLUMN_WIDTHS):
        panel = panel.override_by_name(column, [DynamicConfigValue("custom.width", COLUMN_WIDTHS[column])])
    if listing.limits:
        colour = {"type": "color-text"}
        panel = panel.thresholds(_thresholds(listing.limits))
        panel = panel.override_by_name(listing.value, [DynamicConfigValue("custom.cellOptions", colour)])
    for query in _queries(listing.queries):
        panel = panel.with_target(query.format(PromQueryFormat.TABLE).instant())
    return panel


def _distribution(shown: Distribution) -> heatmap.Panel:
    colour = (
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .fill("dark-orange")
        .scale(HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
        .reverse(False)
    )
    panel = (
        _common(_Heatmap(), shown, NO_ROWS, TALL_ROWS)
        .calculate(False)
        .cell_gap(1)
        .color(colour)
        .exemplars_color("rgba(255,0,255,0.7)")
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .show_legend()
        .show_value(VisibilityMode.NEVER)
        .y_axis(heatmap.YAxisConfig().axis_placement(AxisPlacement.LEFT).unit(shown.unit).reverse(False))
    )
    for query in _queries(shown.queries):
        panel = panel.with_target(query.format(PromQueryFormat.HEATMAP).range())
    return panel


def _common(panel: Built, shown: Shown, otherwise: str, height: int) -> Built:
    return (
        panel.title(shown.title)
        .description(shown.description)
        .datasource(SOURCE)
        .unit(shown.unit)
        .no_value(_missing(shown, otherwise))
        .span(shown.width)
        .height(height)
    )


def _asking(panel: timeseries.Panel, queries: Queries) -> timeseries.Panel:
    for query in _queries(queries):
        panel = panel.with_target(query)
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


def _thresholds(limits: Limits) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=value, color=colour) for value, colour in limits]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _words(words: Any) -> ValueMap:
    results = {value: ValueMappingResult(text=text, color=colour) for value, (text, colour) in words.items()}
    return ValueMap(options=results)


def _nothing(text: str) -> SpecialValueMap:
    """Returns the text of no value in a colour that says nothing: a limit's green would say that all is well."""
    result = ValueMappingResult(text=text, color="text")
    return SpecialValueMap(options=DashboardSpecialValueMapOptions(match=SpecialValueMatch.NULL_AND_NAN, result=result))


def _links(of_field: Links) -> DynamicConfigValue:
    return DynamicConfigValue("links", [{"title": title, "url": url, "targetBlank": True} for title, url in of_field])


def _fixed(colour: str) -> DynamicConfigValue:
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _queries(queries: Queries) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(while_up(expression)).legend_format(legend)
        for letter, (expression, legend) in zip("ABCDEF", queries, strict=False)
    ]
