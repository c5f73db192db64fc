from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ammeter_server.ops import dashboards
from ammeter_server.process import self_metrics
from ammeter_server.prometheus.metrics import METRICS, PROCESS_METRICS
from tests import parts
from tests.e2e.queries import BOARDS, FOLDER, panels_of
from tests.server.feeding import serving

PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}") for name, board in BOARDS.items() for panel in panels_of(board)
]

UNITS = {"none", "short", "sci", "percentunit", "cps", "cpm", "reqps", "s", "bytes", "currencyUSD", "celsius", "watt"}
"""Of those that Grafana knows; another one is looked up in its list of value formats first."""

INTERVALS = {"rate": "$__rate_interval", "increase": "$__range"}
"""rate of each moment, increase of all the time shown; Grafana's linter wants the same of rate."""


def exported() -> set[str]:
    names = {metric.name for metric in (*METRICS, *PROCESS_METRICS)}
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    for family in self_metrics.REGISTRY.collect():
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
        histograms |= {family.name} if family.type == "histogram" else set()
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    pytest.importorskip("grafana_foundation_sdk", reason="pip install -r requirements-dev.txt to generate the boards")
    return importlib.import_module("dashboards.generate")


def test_the_boards_are_the_ones_that_the_generator_makes(generate: ModuleType) -> None:
    kept = {name: (FOLDER / f"{name}.json").read_text() for name in BOARDS}
    assert generate.boards() == kept, "run: make dashboards"


def test_there_is_a_board_for_each_who_looks() -> None:
    assert {"executive", "on-call", "debug", "compare"} == set(BOARDS)


def test_a_panel_waits_for_its_metrics_and_all_others_are_there(generate: ModuleType) -> None:
    board, panels = (importlib.import_module(f"dashboards.{name}") for name in ("board", "panels"))
    told, untold = (panels.Chart("Mood", "It.", "none", [(f"ammeter_{name}", "")]) for name in ("run_step", "mood"))
    made = board.built(board.Board("moods", "Moods", "", (), (("Told", [told, untold]), ("Untold", [untold]))))
    assert ["Told", "Mood"] == [panel.title for panel in made.panels][3:]
    assert [] == [
        shown for one_board in generate.ALL for _, row in one_board.rows for shown in row if board.awaited(shown)
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_imported_and_provisioned_anywhere(name: str) -> None:
    board = BOARDS[name]
    assert (f"ammeter-{name}", None) == (board["uid"], board["id"])
    assert not {"__inputs", "__requires"} & set(board)
    assert isinstance(board["schemaVersion"], int)
    assert board["title"]
    text = json.dumps({**board, "id": 0}).replace('"value": null}', "")  # the lowest threshold, which has no other form
    assert ": null" not in text
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(board["panels"]))
    assert {"${datasource}"} == set(sources)


def test_no_two_boards_have_a_name_or_a_title_in_common() -> None:
    assert len(BOARDS) == len({board["uid"] for board in BOARDS.values()})
    assert len(BOARDS) == len({board["title"] for board in BOARDS.values()})


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_ids_of_their_own_and_lie_beside_each_other(name: str) -> None:
    board = BOARDS[name]
    panels = [*board["panels"], *panels_of(board)]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels})
    open_ones = [panel["gridPos"] for panel in board["panels"]]
    rows = [[panel["gridPos"] for panel in row["panels"]] for row in board["panels"] if row.get("collapsed")]
    for one, other in (pair for places in (open_ones, *rows) for pair in combinations(places, 2)):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_as_the_linter_wants_its_variables(name: str) -> None:
    board = BOARDS[name]
    variables = board["templating"]["list"]
    (source,) = (variable for variable in variables if variable["type"] == "datasource")
    assert variables[0] is source
    assert ("datasource", "Data source", "prometheus") == (source["name"], source["label"], source["query"])
    assert board["editable"] is False
    asked = [variable for variable in variables if variable["type"] == "query"]
    assert asked
    for variable in asked:
        assert 2 == variable["refresh"]  # when the time changes: a run of yesterday is to be found yesterday
        assert variable["query"].startswith(("label_values(", "query_result(sort_desc("))
        assert set(re.findall(r"ammeter_\w+", variable["query"])) <= exported()
    text = json.dumps(board["panels"]) + json.dumps(variables) + json.dumps(board["annotations"])
    assert all(f"${variable['name']}" in text or f"${{{variable['name']}}}" in text for variable in variables)


def test_what_the_linter_is_to_leave_alone_is_the_choice_of_a_scrape_job_and_says_why() -> None:
    left = yaml.safe_load((FOLDER / ".lint").read_text())["exclusions"]
    assert {f"{what}-{label}-rule" for what in ("template", "target") for label in ("job", "instance")} == set(left)
    assert all(reason_of["reason"].endswith(".") for reason_of in left.values())
    every = [query for panel in PANELS for query in queries(panel.values[0])]  # type: ignore[arg-type]
    chosen = [re.sub(r'\bup\{job="ammeter(-collector)?"\}', "up", query) for query in every]
    assert all("instance" not in query and "job" not in query for query in chosen)


@pytest.mark.parametrize("name", BOARDS)
def test_whether_the_collector_answers_and_since_when_stand_first(name: str) -> None:
    first, second, *_ = BOARDS[name]["panels"]
    assert [(0, 0), (0, 8)] == [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in (first, second)]
    assert ['max(up{job="ammeter"})'] == queries(first)
    words, _ = first["fieldConfig"]["defaults"]["mappings"]
    assert {"0": "DOWN", "1": "UP"} == {value: mapping["text"] for value, mapping in words["options"].items()}
    assert "Since the last scrape" == second["title"]
    assert all("ammeter_" not in query for query in queries(second))


@pytest.mark.parametrize("panel", PANELS)
def test_what_is_asked_of_the_collector_is_shown_only_where_it_answers(panel: dict[str, Any]) -> None:
    for query in (query for query in queries(panel) if "ammeter_" in query):
        job = "ammeter-collector" if "ammeter_collector_" in query else "ammeter"
        assert query.endswith(f') and on () (max(up{{job="{job}"}}) == 1)')
        assert panel["fieldConfig"]["defaults"]["noValue"].endswith(("the collector is down", "otherwise unknown"))


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_title_description_unit_and_queries_of_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("timeseries", "stat", "table", "heatmap")
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["fieldConfig"]["defaults"]["noValue"]
    assert queries(panel)
    letters = [target["refId"] for target in panel["targets"]]
    assert sorted(set(letters)) == letters
    for query in queries(panel):
        named = set(re.findall(r"ammeter_\w+", query))
        assert named or 'up{job="ammeter' in query
        assert named <= exported()


@pytest.mark.parametrize("panel", PANELS)
def test_every_line_has_a_legend(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert panel["type"] == "table" or target["legendFormat"]


@pytest.mark.parametrize("panel", PANELS)
def test_every_counter_stands_in_rate_or_increase(panel: dict[str, Any]) -> None:
    for query in queries(panel):
        rated = re.findall(r"(rate|increase)\((ammeter_\w+)(?:\{[^}]*\})?\[(\$\w+)\]\)", query)
        counted = re.findall(r"ammeter_\w+(?:_total|_bucket|_count|_sum)\b", query)
        assert counted == [name for _, name, _ in rated if name in counted]
        course = panel["type"] in ("timeseries", "heatmap")
        for function, _, interval in rated:
            assert interval == ("$__rate_interval" if course else INTERVALS[function])
        assert not course or "$__range" not in query


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    every = [query for panel in PANELS for query in queries(panel.values[0])]  # type: ignore[arg-type]
    values = {"__rate_interval": "5m", "__range": "1h", "objective_runs": "0.9", "objective_steps": "0.9"}
    values |= {"objective_finite": "0.9", "objective_validation": "0.9", "objective_time": "0.9"}
    for name, value in values.items():
        every = [query.replace(f"${name}", value) for query in every]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(every)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [parts.need("promtool"), "check", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    with serving(tmp_path) as client:
        yield client


def test_the_collector_serves_its_boards_and_names_them_when_asked_for_another(served: Any) -> None:
    assert sorted(BOARDS) == dashboards.names()
    for name in BOARDS:
        assert BOARDS[name] == served.get(f"/api/v1/dashboards/{name}").json()
    missing = served.get("/api/v1/dashboards/mood")
    assert 404 == missing.status_code
    assert "there is no dashboard 'mood'; there are compare, debug, executive, on-call" == missing.json()["detail"]
