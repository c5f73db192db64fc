"""Rows of the run's health over one axis of steps, in a browser."""

from __future__ import annotations

import math
import time
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.server.browsing import LOW_CONTRAST, appears, broken_run, found, press, seen_as, show, text
from tests.server.feeding import STEP, Stream, train, wait_until
from tests.server.web.pictures import come_to, measure

STRIP = "#health canvas"
ROW_PX = 38


@pytest.fixture(scope="module")
def stream(client: httpx.Client) -> Stream:
    """400 steps: everything is read in the first hundred and the last hundred, headroom every tenth step."""
    stream = Stream(client, begin=time.time_ns() - 420 * STEP)
    for step in range(400):
        row = {"scale": 65536.0 if step < 200 else 32768.0, "skipped": float(step == 199), "applied": 1.0, "loss": 2.0}
        if step < 100 or step >= 300:
            row |= {"grad_norm": math.nan if step == 50 else 1.5, "step_seconds": 0.25, "lost_updates": 0.125}
            row |= {"device_allocated_bytes": 3.0 * 2**30} | ({"grad_absmax": 0.0625} if step % 10 == 0 else {})
        stream.tell(step, row)
        if step in (0, 390):
            measure(stream, step, {-16: 30, -10: 70})
    for step in (120, 360):
        stream.say("checkpoint.saved", step, path=f"/x/{step}.pt", seconds=1.0, steps=step)
    stream.send()
    return stream


def values(browser: webdriver.Chrome) -> dict[str, str]:
    rows = browser.execute_script(
        "return [...document.querySelectorAll('.strip-row')].map((row) =>"
        " [row.firstChild.firstChild.textContent, row.lastChild.textContent])"
    )
    return dict(rows)


def drawn(browser: webdriver.Chrome, title: str, places: list[float]) -> list[bool]:
    """Whether the row has something at these parts of the width of the steps, from 0 to 1."""
    names = [*values(browser)]
    seen: list[bool] = browser.execute_script(DRAWN, STRIP, names.index(title) * ROW_PX, ROW_PX - 2, places)
    return seen


DRAWN = """
const [selector, top, height, places] = arguments;
const canvas = document.querySelector(selector);
const dot = devicePixelRatio;
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
const pen = copy.getContext("2d", { willReadFrequently: true });
pen.drawImage(canvas, 0, 0);
return places.map((place) => {
  const x = Math.round((6 + place * (canvas.clientWidth - 12)) * dot);
  const { data } = pen.getImageData(x - 1, top * dot, 3, height * dot);
  return data.some((part, at) => at % 4 === 3 && part > 60);
});
"""


def test_every_row_shows_its_newest_value(browser: webdriver.Chrome, client: httpx.Client, stream: Stream) -> None:
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#health", "Checkpoints")
    assert {
        "Loss": "2",
        "Loss scale": "2¹⁵",
        "Skipped steps": "1 of 400 in all",
        "Headroom": "5 bits",
        "Underflow": "30 %",
        "Lost updates": "13 %",
        "Gradient norm": "1.5",
        "Step time": "250 ms",
        "Memory": "3 GiB",
        "Checkpoints": "saved at 360",
    } == values(browser)
    label = found(browser, STRIP)[0].get_attribute("aria-label") or ""
    assert "Health over steps 0 to 399. Loss: 2" in label
    assert "Left and right arrows move the cursor" in label


def test_nothing_is_drawn_over_steps_that_were_not_read(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream
) -> None:
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#health", "Checkpoints")
    places = [step / 399 for step in (40, 110, 150, 250, 290, 360)]
    wait_until(lambda: any(drawn(browser, "Loss", places)))
    assert [True] * 6 == drawn(browser, "Loss", places)
    for title in ("Gradient norm", "Step time", "Memory"):
        assert [True, False, False, False, False, True] == drawn(browser, title, places)
    assert [False, True, False] == drawn(browser, "Skipped steps", [0.2, 199 / 399, 0.8])
    assert [True, False, True] == drawn(browser, "Checkpoints", [120 / 399, 0.6, 360 / 399])
    assert [True, False, True] == drawn(browser, "Headroom", [30 / 399, 35 / 399, 330 / 399])


def test_one_cursor_reads_all_rows_by_pointer_and_by_key(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream
) -> None:
    show(browser, client, f"/runs/{stream.run}?from=190&to=210")
    appears(browser, "#health", "Steps 190 to 210")
    canvas = found(browser, STRIP)[0]
    canvas.send_keys(Keys.HOME + Keys.ARROW_RIGHT * 9)
    appears(browser, "#health .readout", "Step 199")
    assert ("skipped", "2¹⁶") == (values(browser)["Skipped steps"], values(browser)["Loss scale"])
    canvas.send_keys(Keys.ARROW_RIGHT)
    appears(browser, "#health .readout", "Step 200")
    assert ("applied", "2¹⁵") == (values(browser)["Skipped steps"], values(browser)["Loss scale"])
    canvas.send_keys(Keys.ARROW_DOWN)
    assert "Step 200, Loss scale: 2¹⁵" in (
        found(browser, "#main > [role=status]")[0].get_attribute("textContent") or ""
    )
    assert {"Loss", "Loss scale", "Skipped steps"} == {*values(browser)}
    appears(browser, "#health", "Not measured in these steps: headroom, underflow, lost updates, gradient norm, step")
    ActionChains(browser).move_to_element(canvas).perform()
    appears(browser, "#health .readout", "Step 200")


def test_steps_are_chosen_for_all_charts_and_stay_in_the_address(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream
) -> None:
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#health", "Checkpoints")
    canvas = found(browser, STRIP)[0]
    ActionChains(browser).move_to_element(canvas).click_and_hold().move_by_offset(200, 0).release().perform()
    chosen = appears(browser, "#health .filters > span", "Steps")
    appears(browser, ".charts .filters", chosen)
    address = browser.current_url
    assert "from=" in address
    assert "to=" in address
    browser.get("about:blank")
    browser.get(address)
    appears(browser, "#health .filters", chosen)
    appears(browser, ".charts .filters", chosen)
    found(browser, STRIP)[0].send_keys("0")
    wait_until(lambda: not text(browser, "#health .filters > span"))
    assert "from=" not in browser.current_url
    found(browser, STRIP)[0].send_keys(Keys.HOME + "+")
    appears(browser, "#health .filters", "Steps 0 to 200")
    press(browser, "#health-all")
    wait_until(lambda: not text(browser, "#health .filters > span"))


def test_a_live_run_grows_in_the_rows(browser: webdriver.Chrome, client: httpx.Client) -> None:
    growing = Stream(client, begin=time.time_ns() - 200 * STEP)
    train(growing, 0, 20)
    growing.send()
    show(browser, client, f"/runs/{growing.run}")
    appears(browser, "#health", "Loss scale")
    train(growing, 21, 60, scale=1024.0)
    growing.send()
    wait_until(lambda: values(browser).get("Loss scale") == "2¹⁰")


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 390), ("dark", 1400)])
def test_rows_fit_a_narrow_window_and_incidents_come_first(
    browser: webdriver.Chrome, client: httpx.Client, scheme: str, width: int
) -> None:
    with seen_as(browser, scheme, width, 844):
        show(browser, client, f"/runs/{broken_run(client).run}")
        appears(browser, "#incidents article", "Fix")
        come_to(browser, "#health")
        appears(browser, "#health", "Loss scale")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert [] == browser.execute_script(LOW_CONTRAST)
        top: Any = [found(browser, selector)[0].location["y"] for selector in ("#incidents", ".figures")]
        assert (top[0] < top[1]) == (width == 390)
