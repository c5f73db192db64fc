"""The lists of runs and incidents, and the channels of alerts, in a real browser."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from ammeter_server.config import prices
from tests.server.browsing import appears, broken_run, choose, console, found, press, show, text
from tests.server.feeding import STEP, Stream, serving, train, wait_until

HOSTILE = '<img src=x onerror="window.harmed=1"> \u202egnp'
UNHARMED = "return window.harmed === undefined && !document.querySelector('main img')"


@pytest.fixture
def received() -> Iterator[tuple[str, list[Any]]]:
    """A webhook that accepts everything: its Apprise URL, and what it has received."""
    bodies: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/", bodies
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def client(browser: webdriver.Chrome, tmp_path: Path, received: tuple[str, list[Any]]) -> Iterator[httpx.Client]:
    cost = prices.read("*H200*=3600")
    with serving(tmp_path, cost_per_hour=cost, notify=(received[0], "json://127.0.0.1:9/gone")) as client:
        yield client
        browser.get("about:blank")


def healthy(client: httpx.Client, name: str, **named: Any) -> Stream:
    stream = Stream(client, name=name, begin=time.time_ns() - 60 * STEP, **named)
    train(stream, 0, 50)
    stream.send()
    return stream


def names(browser: webdriver.Chrome) -> list[str]:
    script = "return [...document.querySelectorAll('.runs tbody th > a')].map((link) => link.textContent)"
    return list(browser.execute_script(script))


def test_runs_that_need_attention_come_first_with_curves_speed_and_cost(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    broken_run(client, name="broken gpt")
    for number in range(3):
        healthy(client, f"healthy {number}")
    show(browser, client, "/")
    rows = appears(browser, ".runs tbody", "320 samples/s")
    assert "broken gpt" == names(browser)[0]
    for words in ("$5.00", "5 s", "9 skipped", "team=speech"):
        assert words in rows, words
    wait_until(lambda: 8 == len(found(browser, ".runs svg.spark")))
    labels = [str(line.get_attribute("aria-label")) for line in found(browser, ".runs svg.spark")]
    assert any(label.startswith("Loss scale: 65,536 to 256") for label in labels), labels


def test_runs_are_searched_and_listed_by_tag(browser: webdriver.Chrome, client: httpx.Client) -> None:
    healthy(client, "night one", tags={"recipe": "bf16"})
    healthy(client, "day two", tags={"recipe": "fp16", "owner": "lena"})
    show(browser, client, "/")
    appears(browser, ".runs tbody", "night one")
    found(browser, "#search")[0].send_keys("night")
    wait_until(lambda: ["night one"] == names(browser))
    assert browser.current_url.endswith("?q=night")
    found(browser, "#search")[0].send_keys("xyz")
    appears(browser, "#runs", "No run matches")
    press(browser, "#runs .empty a")
    wait_until(lambda: 2 == len(names(browser)))
    press(browser, "//button[contains(., 'recipe=fp16')]", By.XPATH)
    wait_until(lambda: ["day two"] == names(browser))
    press(browser, "#tag")
    wait_until(lambda: 2 == len(names(browser)))
    choose(browser, "#filter-owner", "lena")
    wait_until(lambda: ["day two"] == names(browser))


def test_incidents_of_all_runs_are_filtered(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client, name=HOSTILE, project="speech", tags={"owner": HOSTILE})
    broken_run(client, name="second", project="vision")
    show(browser, client, "/incidents")
    appears(browser, "#list tbody", "second")
    assert browser.execute_script(UNHARMED)
    choose(browser, "#filter-project", "speech")
    wait_until(lambda: "second" not in text(browser, "#list tbody"))
    assert "onerror" in text(browser, "#list tbody")
    incident = client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"][0]["id"]
    client.post(f"/api/v1/incidents/{incident}/acknowledge", headers={"X-Ammeter-Request": "test"})
    choose(browser, "#filter-state", "acknowledged")
    appears(browser, "#list tbody", "acknowledged")
    choose(browser, "#filter-state", "closed")
    appears(browser, "#list", "No incident matches the filters")


def test_channels_show_deliveries_and_are_tested(
    browser: webdriver.Chrome, client: httpx.Client, received: tuple[str, list[Any]]
) -> None:
    broken_run(client, name=HOSTILE)
    show(browser, client, "/alerts")
    cards = appears(browser, "#channels", "last delivery")
    assert "Receives every incident." in cards
    appears(browser, "#channels", "1 notification not delivered")
    before = len(received[1])
    for button in found(browser, "#channels .test"):
        button.click()
    appears(browser, "#channels", "The test was accepted")
    appears(browser, "#channels", "The test failed")
    assert before + 1 == len(received[1])
    assert "[test] Ammeter can reach you" == received[1][-1]["title"]
    assert browser.execute_script(UNHARMED)


def test_without_channels_the_page_says_how_to_add_one(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        show(browser, client, "/alerts")
        appears(browser, "#channels", "AMMETER_SERVER_NOTIFY")
        browser.get("about:blank")
        console(browser)
