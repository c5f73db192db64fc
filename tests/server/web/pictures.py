"""The pictures of tensors on the page: runs that fill them, what they say, what is drawn in them."""

from __future__ import annotations

import time
from typing import Any

import httpx
from selenium import webdriver

from ammeter.tensors.exponents import BINS, LOWEST
from tests.server.browsing import appears, found, show
from tests.server.feeding import STEP, Stream, train, wait_until

HEAT, EXPONENTS = "#heat canvas.cells", "#exponents canvas.cells"
NAMES = -1.0
"""Where, in the width of the cells, the edge before the names of rows is."""


def healthy_run(client: httpx.Client, steps: int = 50, **named: Any) -> Stream:
    stream = Stream(client, begin=time.time_ns() - (steps + 20) * STEP, **named)
    train(stream, 0, steps - 1)
    stream.send()
    return stream


def open_run(browser: webdriver.Chrome, client: httpx.Client, stream: Stream, picture: str) -> str:
    """Shows the picture of the run. What it says of itself, once it is drawn."""
    show(browser, client, f"/runs/{stream.run}")
    return described(browser, picture)


def described(browser: webdriver.Chrome, picture: str, words: str = "") -> str:
    """What the picture says of itself, once somebody looks at it and it has these words."""

    def look() -> str | None:
        come_to(browser, picture.split()[0])
        label = found(browser, picture)[0].get_attribute("aria-label") or ""
        return label if label and words in label else None

    return str(wait_until(look))


def come_to(browser: webdriver.Chrome, section: str) -> None:
    wait_until(lambda: found(browser, f"{section} summary"))
    browser.execute_script("document.querySelector(arguments[0]).scrollIntoView()", section)


def goes(browser: webdriver.Chrome, picture: str, keys: str, words: str) -> None:
    """From cell to cell with the keyboard, until the last one has this text."""
    found(browser, picture)[0].send_keys(keys)
    appears(browser, f"{picture.split()[0]} .readout", words)


def colours_at(browser: webdriver.Chrome, picture: str, row: float, column: float) -> set[str]:
    """The colours of the picture around a part of its height and of the width of its cells, both from 0 to 1."""
    return set(browser.execute_script(PIXELS, picture, row, column))


def drawn_in_chart(browser: webdriver.Chrome, chart: int, places: list[float]) -> list[bool]:
    """Whether the chart, counted from 0, has something of its first curve at these parts of its width, from 0 to 1."""
    values: list[bool] = browser.execute_script(CURVE, chart, places)
    return values


DRAWN = """
const canvas = document.querySelector(arguments[0]);
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
const pen = copy.getContext("2d");
pen.drawImage(canvas, 0, 0);
const { data } = pen.getImageData(0, Math.round(0.3 * canvas.height), canvas.width, 1);
const shown = Array.from({ length: canvas.width }, (_, x) => data[4 * x + 3] > 0);
return shown.filter(Boolean).length / shown.length;
"""
"""Which share of the picture's width has something at a third of its height."""

CURVE = """
const [chart, places] = arguments;
const figure = document.querySelectorAll(".charts figure")[chart];
const [canvas, over] = [figure.querySelector("canvas"), figure.querySelector(".u-over")];
if (!canvas) return [];
const tone = figure.ownerDocument.createElement("canvas").getContext("2d");
tone.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
tone.fillRect(0, 0, 1, 1);
const wanted = tone.getImageData(0, 0, 1, 1).data;
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
const pen = copy.getContext("2d", { willReadFrequently: true });
pen.drawImage(canvas, 0, 0);
const dot = devicePixelRatio;
const like = (data, at) => [0, 1, 2].every((part) => Math.abs(data[at + part] - wanted[part]) < 48);
const near = (data, at) => like(data, at) && data[at + 3] > 128;
return places.map((place) => {
  const x = Math.round((over.offsetLeft + place * over.offsetWidth) * dot);
  const { data } = pen.getImageData(x - 1, over.offsetTop * dot, 3, over.offsetHeight * dot);
  for (let at = 0; at < data.length; at += 4) if (near(data, at)) return true;
  return false;
});
"""

PIXELS = """
const [picture, row, column] = arguments;
const canvas = document.querySelector(picture);
const copy = document.createElement("canvas");
const { width, height } = Object.assign(copy, { width: canvas.width, height: canvas.height });
const pen = copy.getContext("2d");
pen.drawImage(canvas, 0, 0);
const dot = devicePixelRatio;
const left = Math.round(0.36 * canvas.clientWidth) * dot;  // names take no more than that
const [x, y] = [left + column * (width - left), row * (height - 22 * dot)].map(Math.round);
const { data } = pen.getImageData(Math.max(0, x - 4), y - 4, 8, 8);
const two = (part) => part.toString(16).padStart(2, "0");
return Array.from({ length: 64 }, (_, at) => "#" + [...data.slice(4 * at, 4 * at + 4)].map(two).join(""));
"""


def questions(browser: webdriver.Chrome, of: str) -> int:
    """How often the page has asked for it."""
    values: int = browser.execute_script(
        "return performance.getEntriesByType('resource').filter(({ name }) => name.includes(arguments[0])).length", of
    )
    return values


def measure(stream: Stream, step: int, shares: dict[int, int], zeros: int = 0, nonfinite: int = 0) -> None:
    """A histogram with these counts at these exponents."""
    counts = [0] * BINS
    for exponent, count in shares.items():
        counts[exponent - LOWEST] = count
    counts[-2:] = [zeros, nonfinite]
    stream.say("gradient.spectrum", step, lowest=LOWEST, counts=counts, scale=65536.0)
