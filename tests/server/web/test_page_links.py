"""From an incident to other tools, to its card and back, and what a run says of past incidents, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver

from tests.server.accessibility import violations
from tests.server.browsing import appears, broken_run, found, press, show, text
from tests.server.feeding import Stream, serving, train, wait_until

CHANGE = {"X-Ammeter-Request": "test"}
TOOLS = {"Grafana board", "Log", "Silence in Alertmanager"}


@pytest.fixture
def client(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[httpx.Client]:
    tools: dict[str, Any] = {
        "grafana_url": "https://grafana.example",
        "alertmanager_page": "https://alerts.example",
        "log_url": "https://logs.example/q?host={host}&run={run}",
    }
    with serving(tmp_path, notify=("json://127.0.0.1:9/hook",), **tools) as client:
        yield client
        browser.get("about:blank")


def tools_in(browser: webdriver.Chrome, place: str) -> dict[str, str]:
    """Addresses of other tools by the words of their links."""
    links = {link.text: link.get_attribute("href") or "" for link in found(browser, f"{place} a")}
    return {words: address for words, address in links.items() if words in TOOLS}


def test_every_list_leads_to_the_same_tools_and_to_the_card(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client, name="night")
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#incidents .handling", "Silence in Alertmanager")
    wanted = tools_in(browser, "#incidents .handling")
    assert set(wanted) == TOOLS
    assert f"host=node-1&run={stream.run}" in wanted["Log"]
    of_run = {words: wanted[words] for words in ("Grafana board", "Log")}
    assert of_run == tools_in(browser, "#head")
    press(browser, "#incidents .beside a[href='/alerts']")
    appears(browser, "#channels", "night")
    if not found(browser, "#channels details[open]"):
        press(browser, "#channels summary")
    appears(browser, "#channels", "Silence in Alertmanager")
    assert wanted == tools_in(browser, "#channels li")
    assert [] == violations(browser)
    show(browser, client, "/")
    appears(browser, ".runs tbody", "Grafana board")
    assert of_run == tools_in(browser, ".runs tbody")
    assert [] == violations(browser)
    show(browser, client, "/incidents")
    appears(browser, "#list tbody", "Silence in Alertmanager")
    assert wanted == tools_in(browser, "#list tbody")
    assert [] == violations(browser)
    press(browser, "#list tbody th > a")
    appears(browser, "#incidents article", "Fix")
    wait_until(lambda: abs(found(browser, "#incidents article")[0].rect["y"] - scrolled(browser)) < 30)


def scrolled(browser: webdriver.Chrome) -> float:
    return float(browser.execute_script("return scrollY"))


def test_a_run_says_what_happened_before_all_was_well_again(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client, name="night")
    train(stream, 50, 400)
    stream.send()
    path = f"/api/v1/runs/{stream.run}/incidents"
    wait_until(lambda: {"recovered"} == {item["closed_reason"] for item in client.get(path).json()["items"]})
    show(browser, client, f"/runs/{stream.run}")
    says = appears(
        browser, "#incidents details.closed > summary", "No open incidents; 1 recovered: Non-finite gradients"
    )
    assert "steps 41 to 49" in says
    assert "incident" not in text(browser, "#incidents .good")
    appears(browser, "#incidents details.closed article", "Fix")
    assert [] == violations(browser)


def test_a_link_opens_the_fold_around_its_card(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, name="night")
    train(stream, 0, 40)
    for line in range(4):
        stream.say("usage.clip_before_unscale", line, caller=f"train.py:{line}", max_norm=1.0, scale=65536.0)
    stream.say("weights.nonfinite", 40, tensors=["head.weight"], count=1, last_finite=30)
    stream.send()
    path = f"/api/v1/runs/{stream.run}/incidents"
    items = wait_until(lambda: [item for item in client.get(path).json()["items"] if "clip" in item["verdict"]])
    client.post(f"/api/v1/incidents/{items[0]['id']}/close", headers=CHANGE).raise_for_status()
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#incidents details.closed > summary", "1 closed by hand")
    assert not found(browser, "#incidents details.closed[open]")
    show(browser, client, f"/runs/{stream.run}#{items[0]['verdict']}")
    browser.refresh()
    appears(browser, "#incidents details.closed[open] article", "train.py")
