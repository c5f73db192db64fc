"""What every board has: colours that say what is bad, shares from 0 to 1, links that keep the context, folded rows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ammeter_server.prometheus.metrics import METRICS
from tests.e2e.queries import BOARDS, panels_of

PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}") for name, board in BOARDS.items() for panel in panels_of(board)
]
CHANGES = {
    "Throughput gain",
    "Throughput gain by run",
    "Memory against the baseline",
    "Validation against the baseline",
}
"""Percentages that are no shares of a whole."""

OPEN_ABOVE = {"Time inside Ammeter"}
"""Shares of a few percent, whose lines would lie on the axis if that reached 100 %."""


def links(panel: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the addresses of links by the column or type of field that has them."""
    return {
        rule["matcher"]["options"]: [link["url"] for link in prop["value"]]
        for rule in panel["fieldConfig"]["overrides"]
        for prop in rule["properties"]
        if prop["id"] == "links"
    }


@pytest.mark.parametrize("panel", PANELS)
def test_a_share_reaches_from_0_to_1(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    if defaults["unit"] != "percentunit" or panel["title"] in CHANGES:
        assert not {"min", "max"} & set(defaults)
    elif panel["title"] in OPEN_ABOVE:
        assert (0, 0.02) == (defaults["min"], defaults["custom"]["axisSoftMax"])
    else:
        assert (0, 1) == (defaults["min"], defaults["max"])


@pytest.mark.parametrize("panel", PANELS)
def test_colours_begin_at_the_lowest_value_and_rise(panel: dict[str, Any]) -> None:
    thresholds = panel["fieldConfig"]["defaults"].get("thresholds")
    if thresholds is None:
        return
    first, *others = [step["value"] for step in thresholds["steps"]]
    assert first is None  # Grafana's minus infinity: without the member it would always show the first colour
    assert others
    assert sorted(others) == others


@pytest.mark.parametrize("panel", PANELS)
def test_a_figure_without_a_value_is_not_green(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    if panel["type"] == "stat" and ("thresholds" in defaults or "mappings" in defaults):
        nothing = defaults["mappings"][-1]
        assert ("special", "null+nan") == (nothing["type"], nothing["options"]["match"])
        assert {"text": defaults["noValue"], "color": "text"} == nothing["options"]["result"]


@pytest.mark.parametrize("panel", PANELS)
def test_a_line_of_a_run_leads_to_its_page_and_the_debug_board(panel: dict[str, Any]) -> None:
    if any("{{name}}" in target["legendFormat"] for target in panel["targets"]):
        page, debug = links(panel)["number"]
        assert "${collector}/runs/${__field.labels.run}" == page
        assert debug.startswith("/d/ammeter-debug?")
        assert "var-run=${__field.labels.run}" in debug


@pytest.mark.parametrize("name", ["on-call", "debug"])
def test_an_incident_leads_to_the_run_the_runbook_and_the_debug_board(name: str) -> None:
    (incidents,) = (panel for panel in panels_of(BOARDS[name]) if panel["title"] == "Open incidents")
    page, debug = links(incidents)["run"]
    assert "${collector}/runs/${__data.fields.run}" == page
    assert debug.startswith("/d/ammeter-debug?")
    assert debug.endswith("&var-run=${__data.fields.run}")
    assert ["${collector}/runbooks/${__data.fields.verdict}"] == links(incidents)["verdict"]


@pytest.mark.parametrize("panel", PANELS)
def test_a_link_to_another_board_keeps_data_source_project_and_time(panel: dict[str, Any]) -> None:
    for url in (url for urls in links(panel).values() for url in urls if url.startswith("/d/")):
        for kept in ("${datasource:queryparam}", "${project:queryparam}", "${__url_time_range}"):
            assert kept in url
        board = re.match(r"/d/ammeter-([\w-]+)\?", url)
        assert board
        assert board[1] in BOARDS


@pytest.mark.parametrize("name", BOARDS)
def test_the_list_of_boards_keeps_time_and_variables(name: str) -> None:
    (others,) = BOARDS[name]["links"]
    assert (True, True, ["ammeter"]) == (others["keepTime"], others["includeVars"], others["tags"])


def test_rows_for_a_closer_look_are_folded_and_keep_their_panels() -> None:
    rows = {
        (name, row["title"]): row for name, board in BOARDS.items() for row in board["panels"] if row["type"] == "row"
    }
    folded = {place for place, row in rows.items() if row["collapsed"]}
    assert {("on-call", "Devices"), ("on-call", "The collector")} == {
        place for place in folded if place[0] == "on-call"
    }
    assert 4 == len([name for name, _ in folded if name == "debug"])
    assert all(bool(row["panels"]) == row["collapsed"] for row in rows.values())
    for name, board in BOARDS.items():
        places = [panel["gridPos"] for panel in board["panels"]]
        assert places == sorted(places, key=lambda place: (place["y"], place["x"])), name


def test_every_histogram_has_a_heatmap() -> None:
    shown = " ".join(
        target["expr"]
        for board in BOARDS.values()
        for panel in panels_of(board)
        if panel["type"] == "heatmap"
        for target in panel["targets"]
    )
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    assert histograms | {"ammeter_collector_ingest_duration_seconds"} == set(re.findall(r"(ammeter_\w+)_bucket", shown))


@pytest.mark.parametrize("panel", PANELS)
def test_a_loss_scale_is_drawn_by_powers_of_two(panel: dict[str, Any]) -> None:
    if panel["title"] == "Loss scale":
        assert {"type": "log", "log": 2} == panel["fieldConfig"]["defaults"]["custom"]["scaleDistribution"]


@pytest.mark.parametrize("panel", PANELS)
def test_the_numbers_of_an_axis_are_told_apart(panel: dict[str, Any]) -> None:
    """With other units Grafana rounds 0.001 to 0 on a logarithmic axis, and 65536 to 65.5 K."""
    defaults = panel["fieldConfig"]["defaults"]
    scale = defaults.get("custom", {}).get("scaleDistribution", {"type": "linear"})
    if scale["type"] == "log":
        assert {10: "sci", 2: "none"}[scale["log"]] == defaults["unit"]
    elif panel["type"] == "timeseries" and defaults["unit"] == "none":
        assert 0 == defaults["decimals"]


@pytest.mark.parametrize("panel", PANELS)
def test_the_columns_of_a_table_have_titles(panel: dict[str, Any]) -> None:
    for transformation in panel.get("transformations", ()):
        options = transformation["options"]
        titles = [options["renameByName"].get(column, column) for column in options["indexByName"]]
        shown = [title for title in titles if not options["excludeByName"].get(title)]
        assert shown
        assert [] == [title for title in shown if "_" in title or not title[0].isupper()]
        sorted_by = [order["displayName"] for order in panel["options"].get("sortBy") or ()]
        assert {*sorted_by} <= {*shown}


def test_gains_are_those_of_like_runs_over_a_float32_baseline() -> None:
    gains = [
        panel
        for panel in panels_of(BOARDS["executive"])
        if panel["title"] in ("Throughput gain", "Throughput gain by run", "Saved against float32")
    ]
    assert 3 == len(gains)
    for panel in gains:
        (target,) = panel["targets"]
        assert 'ammeter_run_baseline_info{baseline_precision="float32"}' in target["expr"]
