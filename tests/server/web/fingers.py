"""Fingers on the page in a browser: touch events as the device sends them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from selenium import webdriver

Point = tuple[float, float]

_ids = count()
FRAME_SECONDS = 0.02
"""Between two positions of a finger."""


@contextmanager
def phone(browser: webdriver.Chrome, width: int = 390, height: int = 844) -> Iterator[None]:
    """A window of a phone, with a touch screen."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 5})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def place(browser: webdriver.Chrome, selector: str, across: float, down: float = 0.5) -> Point:
    """A point of the element in the window, at these parts of its width and height."""
    box = browser.execute_script(
        "const { left, top, width, height } = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [left, top, width, height];",
        selector,
    )
    return box[0] + across * box[2], box[1] + down * box[3]


def tap(browser: webdriver.Chrome, point: Point) -> None:
    swipe(browser, [[point]])


def swipe(browser: webdriver.Chrome, paths: Sequence[Sequence[Point]], steps: int = 8) -> None:
    """Moves one finger along every path, all at once, from its first to its last point."""
    fingers = [next(_ids) for _ in paths]
    _send(browser, "touchStart", [(finger, path[0]) for finger, path in zip(fingers, paths, strict=True)])
    if any(len(path) > 1 for path in paths):
        for step in range(1, steps + 1):
            points = [_between(path[0], path[-1], step / steps) for path in paths]
            _send(browser, "touchMove", list(zip(fingers, points, strict=True)))
            time.sleep(FRAME_SECONDS)
    _send(browser, "touchEnd", [])


def _between(begin: Point, end: Point, part: float) -> Point:
    return begin[0] + part * (end[0] - begin[0]), begin[1] + part * (end[1] - begin[1])


def _send(browser: webdriver.Chrome, kind: str, points: list[tuple[int, Point]]) -> None:
    touches = [{"id": finger, "x": x, "y": y} for finger, (x, y) in points]
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
