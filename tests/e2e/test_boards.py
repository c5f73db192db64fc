"""Every panel's query, run against a real Prometheus that scrapes real runs, finds something."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, busy, fleet
from tests.e2e.real import wait_for

BOARDS = {
    file.stem: json.loads(file.read_text())
    for file in (Path(__file__).parents[2] / "dashboards" / "boards").glob("*.json")
}
PANELS = [
    pytest.param(name, panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet")) as started:
        busy(started)
        yield started


def filled(query: str, board: dict[str, Any], pair: tuple[str, str], shown: str = "5m") -> str:
    """The query as Grafana sends it. pair: the runs chosen where two are compared. shown: how long a time."""
    values = {"__rate_interval": "10s", "__range": shown, "project": ".*", "run": ".*"}
    for variable in board["templating"]["list"]:
        if variable["type"] == "textbox":
            values[variable["name"]] = variable["query"]
    if board["uid"] == "ammeter-compare":
        values |= {"run": pair[0], "other": pair[1]}
    for name, value in sorted(values.items(), key=lambda each: -len(each[0])):
        query = query.replace(f"${name}", value)
    return query


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_every_panel_shows_something(there: Fleet, name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        queries = {filled(target["expr"], BOARDS[name], pair) for pair in there.pairs}
        assert "$" not in "".join(queries).replace('"$1"', "")  # which is label_replace's own

        def numbers(queries: set[str] = queries) -> list[float]:
            values = [float(series["value"][1]) for query in queries for series in there.prometheus.ask(query)]
            return [value for value in values if math.isfinite(value)]

        wait_for(numbers, f"{target['expr']} finds something", seconds=45)
