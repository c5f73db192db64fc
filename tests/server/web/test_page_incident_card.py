"""The card of an incident: what a person needs to act on it, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver

from ammeter_server.config import prices
from tests.server.browsing import LOW_CONTRAST, appears, broken_run, found, press, press_until, seen_as, show, text
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until

HOSTILE = '<img src=x onerror="window.broken=1"> \u202egnp'
ENVIRONMENT = {
    "device": "NVIDIA H200",
    "git_commit": "4f2c9e7a1b3d5f60718293a4b5c6d7e8f9012345",
    "command": "python train.py --resume old.pt",
}


@pytest.fixture
def client(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[httpx.Client]:
    links: dict[str, Any] = {"grafana_url": "https://grafana.example", "alertmanager_page": "https://alerts.example"}
    with serving(tmp_path, cost_per_hour=prices.read("*H200*=3.50"), **links) as client:
        yield client
        browser.get("about:blank")


def broken(client: httpx.Client, path: str = "/ckpt/30.pt", **named: Any) -> Stream:
    stream = Stream(client, begin=time.time_ns() - 90 * STEP, environment=ENVIRONMENT, tags={"owner": "lena"}, **named)
    train(stream, 0, 40)
    contents = {"weights": {"float32": 1000}, "optimizer": True, "scaler": True}
    stream.say("checkpoint.saved", 30, path=path, seconds=0.1, steps=31, contents=contents, missing=[])
    break_down(stream, 41, 49)
    stream.send()
    incidents = f"/api/v1/runs/{stream.run}/incidents"
    wait_until(lambda: client.get(incidents, params={"verdict": "nonfinite-gradient"}).json()["items"])
    return stream


def test_a_card_says_what_is_safe_what_it_costs_and_how_to_resume(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = broken(client)
    other = broken_run(client, name="twin")
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#incidents article", "Last good checkpoint")
    card = press_until(browser, "#incidents .proof summary", "#incidents article", "bad steps")
    assert "Grafana board" in text(browser, "#head .facts")
    for words in (
        "Stop the run: ",
        "continue from the checkpoint of step 30",
        "weights safe",
        "$3.50 an hour",
        "lena",
        "node-1",
        "4f2c9e7a1b3d",
        "Step 30",
        "python train.py --resume /ckpt/30.pt",
        "ammeter checkpoint /ckpt/30.pt",
        "the same verdict: 1 run, 1 with open incidents",
        "Nobody: no channel accepts this incident",
        "a new occurrence opens it again",
        "bad steps",
    ):
        assert words in card, words
    press(browser, "#incidents .reach summary")
    assert other.run in str(found(browser, "#incidents .reach a")[0].get_attribute("href"))
    links: dict[str, Any] = {link.text: link.get_attribute("href") for link in found(browser, "#incidents .links a")}
    assert {"Grafana board", "Silence in Alertmanager"} == set(links)
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    press(browser, "#incidents .command .copy")
    appears(browser, "#incidents .command", "Copied")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "Call scaler.step(optimizer) at train.py:61 for SGD.step().",
            "scaler.step(optimizer)|train.py:61|SGD.step()",
        ),
        ("In blocks.1.mlp.fc (MulBackward0), step 20 (2^-113).", "blocks.1.mlp.fc"),
        (
            "Set growth_interval=2000 or --lr 0.1; see /data/ckpt/run.pt.",
            "growth_interval=2000|--lr|/data/ckpt/run.pt",
        ),
        ('checkpoint["optimizer"] before unscale_ and e.g. torch 2.13.0', 'checkpoint["optimizer"]|unscale_'),
        ("with torch.autocast('cuda', enabled=False): around it", "torch.autocast('cuda', enabled=False)"),
        ("<img src=x onerror=alert(1)>", "src=x|onerror=alert"),
        ("A loss of 3.5 rises to 1e3. Then it falls.", ""),
    ],
)
def test_code_is_set_apart_from_words(browser: webdriver.Chrome, client: httpx.Client, text: str, code: str) -> None:
    show(browser, client, "/")
    script = """
    const [text, done] = arguments;
    import("/static/code.js").then(({ withCode }) => {
      const place = document.createElement("p");
      place.append(...withCode(text));
      const found = [...place.querySelectorAll("code")].map((part) => part.textContent).join("|");
      done([place.textContent, found, place.querySelectorAll("img").length]);
    });
    """
    assert [text, code, 0] == browser.execute_async_script(script, text)


def test_a_path_with_markup_is_text(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken(client, path=HOSTILE, name=HOSTILE)
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#incidents .command", "onerror")
    assert "\u202e" not in text(browser, "#incidents .command")
    assert browser.execute_script("return window.broken === undefined && !document.querySelector('main img')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_card_fits_its_window_and_can_be_read(
    browser: webdriver.Chrome, client: httpx.Client, scheme: str, width: int
) -> None:
    stream = broken(client, path="/data/" + "very-long-name-of-a-folder/" * 8 + "30.pt")
    with seen_as(browser, scheme, width):
        show(browser, client, f"/runs/{stream.run}")
        appears(browser, "#incidents article", "Non-finite gradients")
        browser.execute_script(
            "document.querySelector('.handling').scrollIntoView()"
        )  # it is requested when it is seen
        appears(browser, "#incidents article", "Last good checkpoint")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert all(part.rect["x"] + part.rect["width"] <= width for part in found(browser, "#incidents article > *"))
        assert [] == browser.execute_script(LOW_CONTRAST)
