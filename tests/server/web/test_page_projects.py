"""Pins on the page that chooses a baseline, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium import webdriver

from tests.server.browsing import LOW_CONTRAST, appears, press, seen_as, show, text
from tests.server.feeding import STEP, Stream, serving, train, wait_until


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
