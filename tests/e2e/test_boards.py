"""Every panel's query, run against a real Prometheus that scrapes real runs, finds something."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, busy, fleet
from tests.e2e.processes import wait_for

pytestmark = pytest.mark.long

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


def filled(query: str, board: dict[str, Any], pair: tuple[str, str], shown: str = "1h") -> str:
    """The query as Grafana sends it. pair: the runs chosen where two are compared. shown: how long a time."""
    values = {"__rate_interval": "10s", "__range": shown, "project": ".*", "run": ".*"}
    for variable in board["templating"]["list"]:
        if variable["type"] == "textbox":
            values[variable["name"]] = variable["query"]
    if board["uid"] == "ammeter-compare":
        values |= {"run": pair[0], "other": pair[1]}
    for name, value in sorted(values.items(), key=lambda pair: -len(pair[0])):
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

        wait_for(numbers, f"{target['expr']} finds something", seconds=90)


@pytest.fixture
def frozen(there: Fleet) -> Iterator[Fleet]:
    """The same fleet with a collector that answers nobody, as Prometheus knows by now. Who sends by itself, without a
    shipper that tries again, has ended."""
    assert there.recorded is not None
    there.recorded.stop()
    wait_for(lambda: there.prometheus.ask("ammeter_run_info"), "runs are scraped", seconds=45)
    there.collector.freeze()
    try:
        down = "max({__name__='up'}) == 0"
        wait_for(lambda: there.prometheus.ask(down), "no scrape works", seconds=45)
        yield there
    finally:
        there.collector.thaw()


def test_no_panel_says_that_all_is_well_while_the_collector_is_frozen(frozen: Fleet) -> None:
    """Not at once, while counters of before still lie in the windows of rates, and not later."""
    first = {name: board["panels"][0]["title"] for name, board in BOARDS.items()}
    assert {"Collector"} == set(first.values())
    for _ in range(2):
        shown = list(panels_with_numbers(frozen))
        apart = [panel for panel in shown if panel[1] in UP]
        assert [] == [panel for panel in shown if panel not in apart]
        assert len(BOARDS) == sum(values == [0.0] for _, title, values in apart if title == "Collector")
        time.sleep(2)
    since = [values[0] for _, title, values in panels_with_numbers(frozen) if title == "Since the last scrape"]
    assert all(2 <= seconds < 120 for seconds in since)


UP = ("Collector", "Since the last scrape", "Responding collector processes")


def panels_with_numbers(there: Fleet) -> Iterator[tuple[str, str, list[float]]]:
    """(board, title, what is shown) of every panel that shows anything now."""
    for name, board in BOARDS.items():
        for panel in (panel for panel in board["panels"] if panel["type"] != "row"):
            for target in panel["targets"]:
                queries = {filled(target["expr"], board, pair) for pair in there.pairs}
                found = [series for query in queries for series in there.prometheus.ask(query)]
                if found:
                    yield name, panel["title"], [float(series["value"][1]) for series in found]
