from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ammeter_server import boards
from ammeter_server.exposition import METRICS
from tests import parts
from tests.server.feeding import serving

ROOT = Path(__file__).parents[2]
BOARDS = {file.stem: json.loads(file.read_text()) for file in (ROOT / "dashboards" / "boards").glob("*.json")}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def exported() -> set[str]:
    names = {metric.name for metric in METRICS}
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    pytest.importorskip("grafana_foundation_sdk", reason="pip install -r requirements-dev.txt to generate the boards")
    return importlib.import_module("dashboards.generate")


def test_the_boards_are_the_ones_that_the_generator_makes(generate: ModuleType) -> None:
    made = {name: generate.text(board) for name, board in generate.boards().items()}
    kept = {name: (ROOT / "dashboards" / "boards" / f"{name}.json").read_text() for name in BOARDS}
    assert made == kept, "run: python -m dashboards.generate"


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_imported_and_provisioned_anywhere(name: str) -> None:
    board = BOARDS[name]
    assert (f"ammeter-{name}", None) == (board["uid"], board["id"])
    assert "__inputs" not in board
    assert "datasource" == board["templating"]["list"][0]["type"]
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(board["panels"]))
    assert {"${datasource}"} == set(sources)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_title_description_unit_and_queries_of_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert queries(panel)
    letters = [target["refId"] for target in panel["targets"]]
    assert sorted(set(letters)) == letters
    for query in queries(panel):
        named = set(re.findall(r"ammeter_\w+", query))
        assert named
        assert named <= exported()


@pytest.mark.parametrize("panel", PANELS)
def test_every_counter_stands_in_rate_or_increase_over_the_rate_interval(panel: dict[str, Any]) -> None:
    for query in queries(panel):
        rated = re.findall(r"(?:rate|increase)\((ammeter_\w+)\{[^}]*\}\[\$__rate_interval\]\)", query)
        counted = re.findall(r"ammeter_\w+(?:_total|_bucket|_count|_sum)\b", query)
        assert counted == [name for name in rated if name in counted]


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(query for panel in PANELS for query in queries(panel.values[0]))  # type: ignore[arg-type]
    ]
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
    assert sorted(BOARDS) == boards.names()
    for name in BOARDS:
        assert BOARDS[name] == served.get(f"/api/v1/dashboards/{name}").json()
    missing = served.get("/api/v1/dashboards/mood")
    assert 404 == missing.status_code
    assert "there is no dashboard 'mood'; there are debug" == missing.json()["detail"]
