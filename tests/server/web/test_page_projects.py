"""The page of a project, and pins where a baseline is chosen, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium import webdriver

from tests.server.browsing import LOW_CONTRAST, appears, console, found, press, seen_as, show, text
from tests.server.feeding import STEP, Stream, serving, train, wait_until
from tests.server.fleet.project import PRICES, fill, new, plain


@pytest.fixture
def client(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client
        browser.get("about:blank")


def fed(client: httpx.Client, name: str) -> Stream:
    stream = Stream(client, name=name, begin=time.time_ns() - 90 * STEP)
    train(stream, 0, 30)
    stream.bye(30)
    stream.send()
    return stream


def test_a_run_is_pinned_and_unpinned_where_a_baseline_is_chosen(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    base, _, run = fed(client, "base"), fed(client, "newer"), fed(client, "nightly")
    show(browser, client, f"/runs/{base.run}/compare")
    appears(browser, "#pin-name", "Pin as baseline of runs named base")
    press(browser, "#pin-project")
    appears(browser, "#pin-project", "Unpin as baseline of project demo")
    assert base.run == client.get(f"/api/v1/runs/{run.run}/baseline").json()["run"]
    show(browser, client, f"/runs/{run.run}/compare")
    assert "pinned baseline of project demo" in appears(browser, ".choice li:first-child", "base")
    assert "pinned" not in text(browser, ".choice li:nth-child(2)")
    for width in (390, 1280):
        with seen_as(browser, "dark", width):
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert [] == browser.execute_script(LOW_CONTRAST)
    show(browser, client, f"/runs/{base.run}/compare")
    press(browser, "#pin-project")
    appears(browser, "#pin-project", "Pin as baseline of project demo")
    wait_until(lambda: [] == client.get("/api/v1/baselines").json()["items"])


HOSTILE = "<img src=x onerror='window.broken=1'>/a project"


def test_a_project_shows_what_failed_what_it_cost_and_what_to_do(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(tmp_path, cost_per_hour=PRICES) as client:
        runs = fill(client, HOSTILE)
        client.post(f"/api/v1/runs/{runs['base'].run}/baseline", headers={"X-Ammeter-Request": "test"})
        show(browser, client, f"/runs/{runs['resumed'].run}")
        appears(browser, ".figures", "40 steps repeated: $1.60")
        press(browser, ".facts a:last-child")
        assert HOSTILE in appears(browser, "#head h1", "a project")
        figures = text(browser, "#head .figures")
        for words in ("60 %", "2 failed runs", "$72.01", "40"):
            assert words in figures, words
        assert "Check the backward pass of blocks.1.mlp.fc" in text(browser, "#todo li:first-child")
        assert "Every check has passed." in text(browser, "#readiness")
        assert "broken | *night*" in text(browser, "#failed tbody")
        assert "the project fp32" in text(browser, "#pins tbody")
        for width, scheme in ((390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")):
            with seen_as(browser, scheme, width):
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width
                assert [] == browser.execute_script(LOW_CONTRAST)
        assert not browser.execute_script("return window.broken")
        browser.get("about:blank")


def test_groups_are_compared_on_the_page_of_their_project(browser: webdriver.Chrome, client: httpx.Client) -> None:
    for seed in range(3):
        for name, level in (("new", 1.0), ("old", 1.2)):
            stream = new(client, "demo", name, 3)
            stream.config["seed"] = seed
            plain(stream, 0.1, level + 0.01 * seed, hours=1, first_loss=2.0 + 0.1 * seed)
    show(browser, client, "/projects/demo")
    appears(browser, "#groups", "One run each decides nothing")
    for name, words in (("a", "new"), ("b", "nobody")):
        found(browser, f"#group-{name}")[0].send_keys(words)
    press(browser, "#compare-groups")
    appears(browser, "#decision", "there is no run 'nobody' in project 'demo'")
    console(browser)  # the 404 that was asked for
    found(browser, "#group-b")[0].clear()
    found(browser, "#group-b")[0].send_keys("old")
    press(browser, "#compare-groups")
    appears(browser, "#decision", "A is better than B")


def test_a_project_that_is_not_there_is_said(browser: webdriver.Chrome, client: httpx.Client) -> None:
    show(browser, client, "/projects/nobody")
    appears(browser, "#project", "Project not found")
    console(browser)  # the 404s that were asked for
