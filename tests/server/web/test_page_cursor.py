"""One cursor over the steps of all pictures of a run, for pointer, keyboard and fingers, in a browser."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from ammeter.wire import frames
from ammeter.wire.frames import Schema, Tensor
from tests.server.accessibility import violations
from tests.server.browsing import appears, found, press, show, text
from tests.server.feeding import STEP, Stream, train, wait_until
from tests.server.web.fingers import phone, place, swipe, tap
from tests.server.web.pictures import EXPONENTS, HEAT, come_to, described, measure

STRIP, CHART = "#health canvas", ".charts .plot"
NAMES = ("embed.weight", "blocks.0.weight", "head.weight")


@pytest.fixture(scope="module")
def stream(client: httpx.Client) -> Stream:
    """100 steps: norms of three tensors, a loss that is the step, and exponents at every tenth step."""
    schema = Schema(tuple(frames.SCALARS), tuple(frames.STATS), tuple(Tensor(n, (8, 8), "float32") for n in NAMES))
    stream = Stream(client, schema=schema, begin=time.time_ns() - 120 * STEP)
    for step in range(100):
        norms = {name: 1.0 + index for index, name in enumerate(NAMES)}
        stream.tell(
            step, {"scale": 65536.0, "applied": 1.0, "loss": float(step), "grad_norm": 2.0}, {"grad.norm": norms}
        )
        if step % 10 == 0:
            measure(stream, step, {-16: 30, -10: 70})
    stream.send()
    return stream


def opened(browser: webdriver.Chrome, client: httpx.Client, stream: Stream, steps: str = "") -> None:
    show(browser, client, f"/runs/{stream.run}{steps}")
    come_to(browser, "#health")
    appears(browser, "#health", "Loss scale")
    wait_until(lambda: len(found(browser, ".charts .u-over")) == 3)  # charts follow the first screen


def loss(browser: webdriver.Chrome) -> str:
    """The loss below its chart, and the step at which it was read."""
    return " ".join(found(browser, ".charts .u-legend")[2].text.split())


def says(browser: webdriver.Chrome, selector: str, words: str) -> None:
    """Comes to the part, which then shows the cursor."""
    browser.execute_script("document.querySelector(arguments[0]).scrollIntoView({ block: 'center' })", selector)
    appears(browser, selector, words)


def type_into(browser: webdriver.Chrome, picture: str, keys: str) -> None:
    """Moves the focus there from another picture, as the Tab key does, and types."""
    browser.execute_script("document.querySelector(arguments[0]).focus()", picture)
    browser.switch_to.active_element.send_keys(keys)


def test_a_step_chosen_by_key_shows_in_every_picture(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream
) -> None:
    opened(browser, client, stream)
    described(browser, HEAT)
    described(browser, EXPONENTS)
    come_to(browser, "#health")
    found(browser, STRIP)[0].send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 20)
    says(browser, "#health .readout", "Step 20")
    says(browser, ".charts figure:nth-of-type(3)", "step20")
    assert "step20 training20" == loss(browser)
    says(browser, "#heat .readout", "step 20 · highest: 3 in head.weight at step 20")
    says(browser, "#exponents .readout", "At step 20: 30 % below 2⁻¹⁴")
    type_into(browser, EXPONENTS, Keys.ARROW_RIGHT * 2)
    appears(browser, "#exponents .readout", "step 30 · loss scale 2¹⁶")
    says(browser, "#heat .readout", "step 30 · highest")
    type_into(browser, ".charts figure:nth-of-type(3) .plot", Keys.ARROW_LEFT)
    appears(browser, "#main > [role=status]", "Step 29, Loss: training 29")
    says(browser, "#health .readout", "Step 29")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    appears(browser, "#health .readout", "Drag to select steps")
    assert "step– training–" == loss(browser)


def test_a_step_under_the_pointer_shows_in_the_other_pictures(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream
) -> None:
    opened(browser, client, stream)
    browser.execute_script("document.querySelector(arguments[0]).scrollIntoView({ block: 'end' })", ".charts")
    ActionChains(browser).move_to_element(found(browser, ".charts .u-over")[1]).perform()
    step = re.search(r"Step (\d+)", appears(browser, "#health .readout", "Step "))
    assert step is not None
    assert f"step{step[1]} training{step[1]}" == loss(browser)
    ActionChains(browser).move_to_element(found(browser, ".bar .mark")[0]).perform()
    appears(browser, "#health .readout", "Drag to select steps")


def test_the_cursor_stays_at_its_step_while_the_run_grows(browser: webdriver.Chrome, client: httpx.Client) -> None:
    growing = Stream(client, begin=time.time_ns() - 200 * STEP)
    train(growing, 0, 40)
    growing.send()
    opened(browser, client, growing)
    type_into(browser, ".charts figure:nth-of-type(3) .plot", Keys.HOME + Keys.ARROW_RIGHT * 20)
    appears(browser, "#main > [role=status]", "Step 20, Loss")
    before = loss(browser)
    assert "step20 " in before
    at = "return document.querySelectorAll('.u-cursor-x')[2].getBoundingClientRect().x"
    first = browser.execute_script(at)
    train(growing, 41, 80)
    growing.send()
    wait_until(lambda: browser.execute_script(at) < first - 20)
    assert before == loss(browser)
    says(browser, "#health .readout", "Step 20")


def test_a_picture_out_of_sight_is_not_drawn_for_the_cursor(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream
) -> None:
    opened(browser, client, stream)
    described(browser, HEAT)
    browser.execute_script("scrollTo(0, 0); document.getElementById('main').style.paddingBottom = '3000px'")
    browser.execute_script("document.getElementById('heat').style.marginTop = '3000px'")
    browser.execute_script(COUNT_DRAWINGS, HEAT)
    found(browser, STRIP)[0].send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    appears(browser, "#health .readout", "Step 2")
    assert 0 == browser.execute_script("return window.drawings")
    says(browser, "#heat .readout", "step 2 · highest")
    assert browser.execute_script("return window.drawings") > 0


COUNT_DRAWINGS = """
window.drawings = 0;
const pen = document.querySelector(arguments[0]).getContext("2d");
const draw = pen.drawImage;
pen.drawImage = function (...what) { window.drawings++; return draw.apply(this, what); };
"""


def test_keys_zoom_charts_and_grids(browser: webdriver.Chrome, client: httpx.Client, stream: Stream) -> None:
    opened(browser, client, stream)
    found(browser, CHART)[0].send_keys(Keys.HOME + "+")
    appears(browser, ".charts .filters", "Steps 0 to 50")
    described(browser, HEAT, "over steps 0 to 50")
    found(browser, HEAT)[0].send_keys("-")
    described(browser, HEAT, "over steps 0 to 99")
    assert "from=" not in browser.current_url
    found(browser, HEAT)[0].send_keys(Keys.HOME + "+")
    described(browser, HEAT, "over steps 0 to 50")
    press(browser, "#heat-all")
    described(browser, HEAT, "over steps 0 to 99")
    assert [] == violations(browser)


@pytest.mark.parametrize("picture", [STRIP, ".charts .u-over", HEAT, EXPONENTS])
def test_fingers_read_zoom_and_scroll(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream, picture: str
) -> None:
    with phone(browser):
        opened(browser, client, stream)
        if picture in (HEAT, EXPONENTS):
            described(browser, picture)
        bring = "document.querySelector(arguments[0]).scrollIntoView({ block: 'center' })"
        browser.execute_script(bring, picture)
        tap(browser, place(browser, picture, 0.6))
        first = steps_in(browser, picture)
        browser.execute_script(bring, picture)
        swipe(browser, [[place(browser, picture, 0.6), place(browser, picture, 0.9)]])
        wait_until(lambda: steps_in(browser, picture) > first)
        assert "from=" not in browser.current_url

        before = browser.execute_script("return scrollY")
        swipe(browser, [[place(browser, picture, 0.6), (place(browser, picture, 0.6)[0], 100.0)]])
        wait_until(lambda: browser.execute_script("return scrollY") > before)
        assert "from=" not in browser.current_url

        browser.execute_script(bring, picture)
        x, y = place(browser, picture, 0.65)
        swipe(browser, [[(x - 20, y), (x - 60, y)], [(x + 20, y), (x + 60, y)]])
        wait_until(lambda: "from=" in browser.current_url)
        shown = re.search(r"from=(\d+)&to=(\d+)", browser.current_url)
        assert shown is not None
        assert 15 < int(shown[2]) - int(shown[1]) < 60
        press(browser, "#health-all")
        wait_until(lambda: "from=" not in browser.current_url)


def steps_in(browser: webdriver.Chrome, picture: str) -> int:
    """The step that the picture shows below itself."""
    place = {STRIP: "#health .readout", ".charts .u-over": ".charts .u-legend"}.get(picture, picture.split()[0])
    below = place if place.startswith((".charts", "#health")) else f"{place} .readout"
    step = wait_until(lambda: re.search(r"[Ss]teps? ?(\d[\d,]*)", text(browser, below)))
    return int(step[1].replace(",", ""))


def test_buttons_zoom_on_a_phone(browser: webdriver.Chrome, client: httpx.Client, stream: Stream) -> None:
    with phone(browser):
        opened(browser, client, stream)
        appears(browser, "#health .readout", "pinch to select steps")
        press(browser, "#health .fingers [aria-label='Zoom in']")
        appears(browser, "#health .filters", "Steps 25 to 75")
        press(browser, "#health .fingers [aria-label='Zoom out']")
        wait_until(lambda: "from=" not in browser.current_url)
        assert [] == violations(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
