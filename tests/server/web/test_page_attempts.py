"""A run with several attempts, and late values, on its page in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium import webdriver

from tests.server.browsing import appears, found, press, show, text
from tests.server.databases import postgresql
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until
from tests.server.web.pictures import HEAT, described, drawn_in_chart


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, browser: webdriver.Chrome, tmp_path: Path) -> Iterator[httpx.Client]:
    if request.param == "sqlite":
        with serving(tmp_path) as client:
            yield client
            browser.get("about:blank")
        return
    with postgresql() as url, serving(tmp_path, url) as client:
        yield client
        browser.get("about:blank")


def labels(browser: webdriver.Chrome) -> list[str]:
    return [plot.get_attribute("aria-label") or "" for plot in found(browser, "#charts .plot")]


def resumed(client: httpx.Client) -> tuple[Stream, Stream]:
    """Attempt 1 dies at step 99 and is resumed from the checkpoint of step 60; attempt 2 breaks down at step 90."""
    first = Stream(client, name="resumed", begin=time.time_ns() - 400 * STEP)
    train(first, 0, 99)
    first.say("checkpoint.saved", 59, path="ckpt.pt", steps=60)
    first.bye(99, "exception")
    first.send()
    second = Stream(client, run=first.run, name="resumed", begin=time.time_ns() - 60 * STEP)
    second.say("checkpoint.restored", 0, path="ckpt.pt")
    train(second, 0, 29)
    break_down(second, 30, 38)
    second.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{first.run}/incidents").json()["items"])
    return first, second


def test_the_attempts_of_a_run_follow_each_other(browser: webdriver.Chrome, client: httpx.Client) -> None:
    first, _ = resumed(client)
    show(browser, client, f"/runs/{first.run}")
    assert "attempt 2, step 38" in appears(browser, ".figures", "98")
    wait_until(lambda: [label for label in labels(browser) if "attempt 2 from step 60" in label])
    incident = appears(browser, "#incidents", "first step")
    assert "90" in incident
    assert "which is step 60 of the run" in incident
    assert "98" in appears(browser, "#events tbody tr:first-child td:first-child", "98")
    legend = text(browser, "#charts figure:nth-of-type(3) .u-legend")
    assert legend.count("training, replaced by a later attempt") == 1
    assert all(drawn_in_chart(browser, 2, [0.1, 0.5, 0.7, 0.95]))
    heat = described(browser, HEAT)
    assert "over steps 0 to 98" in heat
    assert "first at step 90" in heat
    browser.execute_script("document.querySelector('#charts').scrollIntoView()")
    press(browser, "#incidents .spot button")
    appears(browser, "#charts", "Steps 30 to 98")


def test_a_new_attempt_takes_its_place_while_one_looks(browser: webdriver.Chrome, client: httpx.Client) -> None:
    first = Stream(client, name="live", begin=time.time_ns() - 200 * STEP)
    train(first, 0, 49)
    first.say("checkpoint.saved", 29, path="ckpt.pt", steps=30)
    first.bye(49, "exception")
    first.send()
    show(browser, client, f"/runs/{first.run}")
    appears(browser, ".figures", "49")
    wait_until(lambda: labels(browser)[1:])
    assert not [label for label in labels(browser) if "attempt" in label]
    second = Stream(client, run=first.run, name="live", begin=time.time_ns() - 5 * STEP)
    second.say("checkpoint.restored", 0, path="ckpt.pt")
    train(second, 0, 4)
    second.send()
    appears(browser, ".figures", "attempt 2, step 4")
    wait_until(lambda: [label for label in labels(browser) if "attempt 2 from step 30" in label])
    assert "34" in text(browser, ".figures dd")


def test_a_validation_loss_that_comes_late_is_drawn_at_once(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, name="late", begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    stream.send()
    show(browser, client, f"/runs/{stream.run}")
    wait_until(lambda: [label for label in labels(browser) if "validation" in label])
    stream.say("values.logged", 33, val_loss=7.5)
    stream.send()
    wait_until(lambda: [label for label in labels(browser) if "validation 7.5" in label], seconds=20)
