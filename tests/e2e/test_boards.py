"""Every panel's query, run against a real Prometheus that scrapes real runs, finds something that Grafana draws."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from dashboards import pictures, rendering
from tests.dashboards.packages import need_packages
from tests.e2e.fleet import Fleet, busy, fleet
from tests.e2e.processes import wait_for
from tests.e2e.queries import BOARDS, choices, chosen, filled, panels_of

pytestmark = pytest.mark.long

PANELS = [
    pytest.param(name, panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels_of(board)
]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet")) as started:
        busy(started)
        yield started


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_every_panel_shows_something(there: Fleet, name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        queries = {filled(target["expr"], BOARDS[name], pair) for pair in there.pairs}
        assert "$" not in "".join(queries).replace('"$1"', "")  # which is label_replace's own

        def numbers(queries: set[str] = queries) -> list[float]:
            values = [float(series["value"][1]) for query in queries for series in there.prometheus.ask(query)]
            return [value for value in values if math.isfinite(value)]

        wait_for(numbers, f"{target['expr']} finds something", seconds=90)


@pytest.mark.parametrize("name", BOARDS)
def test_incidents_are_marked_in_the_charts(there: Fleet, name: str) -> None:
    page, ticket = BOARDS[name]["annotations"]["list"]
    pair = (there.trainings[0].run, there.pairs[0][0])  # the run full of NaN, and one with a ticket
    for mark, severity in ((page, "page"), (ticket, "ticket")):
        query = filled(mark["expr"], BOARDS[name], pair)
        found = wait_for(partial(there.prometheus.ask, query), f"{query} finds something", seconds=90)
        assert {severity} == {series["metric"]["severity"] for series in found}
        assert all(series["metric"]["verdict"] for series in found)


def variable(name: str, board: str) -> dict[str, Any]:
    (found,) = (one for one in BOARDS[board]["templating"]["list"] if one["name"] == name)
    return dict(found)


def test_runs_are_picked_by_their_names_the_newest_first(there: Fleet) -> None:
    values = chosen(BOARDS["debug"], there.pairs[0])
    offered = choices(there.prometheus, variable("run", "debug"), values)
    by_run = {run: text for text, run in offered}
    assert {f"{training.name} {training.run[:8]}" for training in there.trainings} <= set(by_run.values())
    order = [run for _, run in offered]
    begun = [there.trainings[0].run, there.pairs[0][1], there.pairs[0][0]]
    assert begun == sorted(begun, key=order.index, reverse=True)


def test_a_run_and_its_baseline_are_compared_by_default(there: Fleet) -> None:
    values = chosen(BOARDS["compare"], there.pairs[0])
    (_, first), *_ = choices(there.prometheus, variable("run", "compare"), values)
    (_, second), *others = choices(there.prometheus, variable("other", "compare"), values | {"run": first})
    baseline = there.pairs[0][1]
    assert first in {training.run for training in there.trainings} - {baseline}
    assert baseline == second
    assert first not in [run for _, run in others]


def test_links_lead_to_the_collector_that_is_scraped(there: Fleet) -> None:
    assert [(there.collector.url,) * 2] == choices(there.prometheus, variable("collector", "on-call"), {})


@pytest.fixture(scope="module")
def grafana() -> Iterator[rendering.Renderer]:
    need_packages()
    with rendering.renderer() as opened:
        yield opened


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_components_draw_every_panel(there: Fleet, grafana: rendering.Renderer, name: str) -> None:
    empty = {panel["title"]: panel["fieldConfig"]["defaults"]["noValue"] for panel in panels_of(BOARDS[name])}
    end = time.time()
    themes: tuple[rendering.Mode, ...] = ("light", "dark")
    shown = [
        grafana.draw(pictures.read(there, name, there.began, end, pair), mode=mode)
        for pair, mode in zip(there.pairs, themes, strict=True)
    ]
    assert all(empty.keys() <= texts.keys() for texts in shown)
    assert [] == [title for title, text in empty.items() if all(text in texts[title] for texts in shown)]


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
        for panel in panels_of(board):
            for target in panel["targets"]:
                queries = {filled(target["expr"], board, pair) for pair in there.pairs}
                found = [series for query in queries for series in there.prometheus.ask(query)]
                if found:
                    yield name, panel["title"], [float(series["value"][1]) for series in found]
