"""Helpers for tests of the page in a real Chromium: content, clicks and console errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests import parts
from tests.server.feeding import STEP, Stream, break_down, train, wait_until

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,1000",
)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A real Chromium with its chromedriver, closed with the tests."""
    options = webdriver.ChromeOptions()
    options.binary_location = parts.need("chromium", "google-chrome")
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(parts.need("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


def complaints(browser: webdriver.Chrome) -> list[str]:
    """Returns console errors since the last call: refused scripts or styles, failed requests, exceptions."""
    told = [entry["message"] for entry in console(browser) if entry["level"] in ("WARNING", "SEVERE")]
    # Chromium itself reports this one answer, which requests signing in
    return [message for message in told if "401 (Unauthorized)" not in message]


@contextmanager
def seen_as(browser: webdriver.Chrome, scheme: str, width: int, height: int = 900) -> Iterator[None]:
    """Emulates a light or dark scheme, and a window of that size."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def console(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """Returns messages in the page's console since the last call."""
    entries: list[dict[str, Any]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return entries


def show(browser: webdriver.Chrome, client: httpx.Client, path: str) -> None:
    browser.get(f"{str(client.base_url).rstrip('/')}{path}")


def text(browser: webdriver.Chrome, selector: str) -> str:
    return " ".join(element.text for element in found(browser, selector))


def found(browser: webdriver.Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def appears(browser: webdriver.Chrome, selector: str, words: str, seconds: float = 60.0) -> str:
    """Waits for words in the elements, and returns all their text."""

    def look() -> str | None:
        try:
            seen = text(browser, selector)
        except Exception:  # noqa: BLE001 - an element was rendered anew while it was read
            return None
        return seen if words in seen else None

    return str(wait_until(look, seconds))


def press(browser: webdriver.Chrome, selector: str, by: str = By.CSS_SELECTOR) -> None:
    """Clicks the first of the elements when it is stable: changed elements are rendered anew, or move.

    One that something else covers, such as the head of the page, is brought to the middle of the window.
    """

    def click() -> None:
        element = browser.find_elements(by, selector)[0]
        try:
            element.click()
        except ElementClickInterceptedException:
            browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            raise

    steadily(click)


def choose(browser: webdriver.Chrome, selector: str, value: str) -> None:
    """Chooses a value of a list, when the list is stable."""
    steadily(lambda: Select(found(browser, selector)[0]).select_by_value(value))


def steadily(act: Callable[[], None]) -> None:
    """Acts on elements of the page, and again where they were rendered anew meanwhile."""

    def try_it() -> bool:
        try:
            act()
        except (IndexError, ElementClickInterceptedException, StaleElementReferenceException):
            return False
        return True

    wait_until(try_it)


def press_until(browser: webdriver.Chrome, selector: str, place: str, words: str) -> str:
    """Presses until words appear, up to three times: a press is lost if the element is rendered anew in its middle."""
    for _ in range(2):
        press(browser, selector)
        with suppress(AssertionError):
            return appears(browser, place, words, seconds=15.0)
    press(browser, selector)
    return appears(browser, place, words)


def broken_run(client: httpx.Client, at: int = 41, **named: Any) -> Stream:
    """Sends a healthy run that then has NaN gradients in nine steps.

    Returns when its incident exists.
    """
    stream = Stream(client, begin=time.time_ns() - (at + 20) * STEP, **named)
    train(stream, 0, at - 1)
    break_down(stream, at, at + 8)
    stream.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])
    return stream


LOW_CONTRAST = """
const light = (rgb) => {
  const [r, g, b] = rgb.map((c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const colour = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const [r, g, b, a = 1] = colour(getComputedStyle(each).backgroundColor);
    if (a === 1) return [r, g, b];
  }
  return [255, 255, 255];
};
const told = [];
for (const element of document.querySelectorAll("main *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || getComputedStyle(element).color.includes("color(")) continue;
  const [a, b] = [light(colour(getComputedStyle(element).color).slice(0, 3)), light(ground(element))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) told.push(`${element.tagName}.${element.className}: ${contrast.toFixed(2)}`);
}
return [...new Set(told)];
"""
