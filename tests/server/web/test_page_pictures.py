"""Pictures of tensors and of their exponents on the page, in a browser."""

from __future__ import annotations

import math
import re
import time

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from ammeter.tensors.exponents import BINS, LOWEST
from ammeter.wire.frames import Schema, Tensor
from tests.server.browsing import LOW_CONTRAST, appears, broken_run, found, press, seen_as, show, text
from tests.server.feeding import STEP, TENSORS, Stream, train, wait_until
from tests.server.web.pictures import (
    DRAWN,
    EXPONENTS,
    HEAT,
    NAMES,
    colours_at,
    come_to,
    described,
    drawn_in_chart,
    goes,
    healthy_run,
    measure,
    open_run,
    questions,
)


def test_the_tensor_where_a_nan_was_born_cannot_be_missed(browser: webdriver.Chrome, client: httpx.Client) -> None:
    page_text = open_run(browser, client, broken_run(client), HEAT)
    assert "Gradient norm of 4 tensors over steps 0 to 49." in page_text
    assert (
        "NaN or Inf in 3 tensors, first at step 41, the last of them in the model is blocks.1.mlp.fc.weight."
        in page_text
    )
    worst = appears(browser, "#heat .worst", "NaN or Inf in 3 of 4, from step 41 in blocks.1.mlp.fc.weight")
    press(browser, "#heat .worst button")
    assert worst
    appears(browser, "#heat .readout", "blocks.1.mlp.fc.weight · step 41 · NaN")
    page = browser.execute_script("return getComputedStyle(document.documentElement).getPropertyValue('--page')")
    assert "urgent incident" in text(browser, "#heat .legend")
    striped = [f"{page}ff" in colours_at(browser, HEAT, row, 0.95) for row in (0.125, 0.375, 0.625, 0.875)]
    assert [True, True, True, False] == striped
    assert f"{page}ff" not in colours_at(browser, HEAT, 0.625, 0.3)
    assert [False, False, True, False] == [
        {f"{page}ff"} <= colours_at(browser, HEAT, row, NAMES) for row in (0.125, 0.375, 0.625, 0.875)
    ]


def test_a_row_leads_to_its_curve_by_pointer_and_by_key(browser: webdriver.Chrome, client: httpx.Client) -> None:
    page_text = open_run(browser, client, healthy_run(client), HEAT)
    assert "None of them is NaN or Inf. Highest: 2.23 in embed.weight at step 1. Tensors are" in page_text
    goes(browser, HEAT, Keys.PAGE_DOWN, "head.weight · step 49 · 0.929")
    goes(browser, HEAT, Keys.ARROW_LEFT, "head.weight · step 48 ·")
    goes(browser, HEAT, Keys.ARROW_UP + Keys.HOME, "blocks.1.mlp.fc.weight · step 0 ·")
    found(browser, HEAT)[0].send_keys(Keys.ENTER)
    appears(browser, "figcaption", "Gradient norm of blocks.1.mlp.fc.weight")
    pointer = ActionChains(browser).move_to_element_with_offset(found(browser, HEAT)[0], 0, -44)
    pointer.perform()
    appears(browser, "#heat .readout", "embed.weight · step ")
    pointer.click().perform()
    appears(browser, "figcaption", "Gradient norm of embed.weight")


def test_all_pictures_show_the_steps_that_were_chosen(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = healthy_run(client, 100)
    measure(stream, 0, {-3: 10})
    measure(stream, 80, {-5: 10})
    stream.send()
    assert "At step 80:" in open_run(browser, client, stream, EXPONENTS)
    described(browser, HEAT, "over steps 0 to 99")
    drag = ActionChains(browser).move_to_element_with_offset(found(browser, HEAT)[0], 50, 0).click_and_hold()
    drag.move_by_offset(200, 0).release().perform()
    first, last = (int(step) for step in re.findall(r"\d+", appears(browser, ".charts .filters", "Steps")))
    assert 0 < first < last < 99
    described(browser, HEAT, f"over steps {first} to {last}.")
    found(browser, HEAT)[0].send_keys(Keys.HOME + Keys.ENTER)
    appears(browser, "figcaption", "Gradient norm of embed.weight")
    appears(browser, ".charts .filters", f"Steps {first} to {last}")
    come_to(browser, "#exponents")
    appears(browser, "#exponents .empty", "No full statistics in these steps")
    press(browser, "#all-steps")
    described(browser, HEAT, "over steps 0 to 99")
    come_to(browser, "#exponents")
    wait_until(lambda: not text(browser, "#exponents .empty"))


def test_any_stat_is_chosen_and_what_was_not_measured_stays_blank(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    open_run(browser, client, healthy_run(client, 40), HEAT)
    choice = Select(found(browser, "#heat-stat")[0])
    choice.select_by_value("grad.zeros")
    described(browser, HEAT, "Zeros in the gradient of 4 tensors over steps 0 to 39. Highest: 0.8 %")
    goes(browser, HEAT, Keys.END, "step 30 · 0.8 %, highest of steps 30 to 39")  # it is read every tenth step
    choice.select_by_value("update.ratio")
    appears(browser, "#heat .empty", "Update to weight: not measured in these steps.")
    choice.select_by_value("grad.nans")
    appears(browser, "#heat .empty", "NaN in the gradient: not measured")
    choice.select_by_value("grad.norm")
    described(browser, HEAT, "Gradient norm")
    assert ["0.3", "0.95", "3"] == text(browser, "#heat .ramp").split()
    assert "not measured" in appears(browser, "#heat .legend", "NaN or Inf")


def test_gaps_and_zeros_have_colours_of_their_own(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    for step in range(4):
        norms = {"embed.weight": 0.0, "head.weight": 2.0} | ({} if step == 3 else {"blocks.0.mlp.fc.weight": 1.0})
        stream.tell(step, {"grad_norm": 1.0}, {"grad.norm": norms})
    stream.send()
    open_run(browser, client, stream, HEAT)
    goes(browser, HEAT, Keys.HOME + Keys.END, "embed.weight · step 3 · 0")
    goes(browser, HEAT, Keys.ARROW_DOWN, "blocks.0.mlp.fc.weight · step 3 · not measured")
    assert {"#d3d6daff"} == colours_at(browser, HEAT, 0.125, 0.5)
    assert {"#00000000"} == colours_at(browser, HEAT, 0.375, 0.95)
    assert not {"#d3d6daff", "#00000000"} & colours_at(browser, HEAT, 0.375, 0.5)


def test_what_is_folded_or_out_of_sight_asks_for_nothing(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = healthy_run(client)
    with seen_as(browser, "light", 1280, 400):
        show(browser, client, f"/runs/{stream.run}")
        appears(browser, ".events tbody", "scaler.seen")
        assert (0, 0) == (questions(browser, "/tensors/matrix"), questions(browser, "/spectrum"))
        described(browser, HEAT)
        press(browser, "#heat summary")
        wait_until(lambda: not found(browser, "#heat details[open]"))
        come_to(browser, "#exponents")
        appears(browser, "#exponents .empty", "No full statistics of this run yet")
        asked = questions(browser, "/tensors/matrix")
        stream.bye(49)
        stream.send()
        appears(browser, "h1 + .state", "ended")
        wait_until(lambda: questions(browser, "/spectrum") >= 2)
        assert asked == questions(browser, "/tensors/matrix")
        press(browser, "#heat summary")
        wait_until(lambda: questions(browser, "/tensors/matrix") > asked)


def test_a_live_run_grows_in_the_picture(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = healthy_run(client, 10)
    open_run(browser, client, stream, HEAT)
    reached = 9
    while "over steps 0 to 9." in described(browser, HEAT):  # as seldom as the table of tensors
        assert reached < 200
        train(stream, reached + 1, reached + 10)
        stream.send()
        reached += 10
        appears(browser, ".figures", str(reached))


def test_many_tensors_scroll_and_each_of_them_is_drawn(browser: webdriver.Chrome, client: httpx.Client) -> None:
    tensors = tuple(Tensor(f"layers.{number}.mlp.up_proj.weight", (8, 8), "float32") for number in range(500))
    stream = Stream(client, schema=Schema(("grad_norm",), ("grad.norm",), tensors), begin=time.time_ns() - 1020 * STEP)
    for step in range(1000):
        norm = math.nan if step == 700 else 1.5 + math.sin(step / 90)
        stream.tell(step, {"grad_norm": 1.0}, {"grad.norm": 0.5} if step % 50 else {"grad.norm": norm})
    stream.tell(1000, {"grad_norm": 1.0}, {"grad.norm": {tensors[444].name: math.inf}})
    stream.send()
    page_text = open_run(browser, client, stream, HEAT)
    assert "Gradient norm of 500 tensors over steps 0 to 1,000." in page_text
    assert re.search("NaN or Inf in 500 tensors, first at step 700, .* is layers.499.mlp.up_proj.weight", page_text)
    assert 500 * 16 < browser.execute_script("return document.querySelector('#heat .rows').scrollHeight") < 501 * 17
    goes(browser, HEAT, Keys.PAGE_UP * 50 + Keys.HOME, "layers.0.mlp.up_proj.weight · step")
    goes(browser, HEAT, Keys.PAGE_DOWN * 50, "layers.499.mlp.up_proj.weight · step")
    assert "#00000000" not in colours_at(browser, HEAT, 0.5, 0.3)


def test_tensors_that_come_in_pages_stand_in_one_picture(browser: webdriver.Chrome, client: httpx.Client) -> None:
    tensors = tuple(Tensor(f"experts.{number}.weight", (8, 8), "float32") for number in range(1200))
    stream = Stream(client, schema=Schema(("grad_norm",), ("grad.norm",), tensors), begin=time.time_ns() - 60 * STEP)
    for step in range(30):
        stream.tell(step, {"grad_norm": 1.0}, {"grad.norm": {tensors[1100].name: 7.0} if step == 20 else 0.5})
    stream.send()
    page_text = open_run(browser, client, stream, HEAT)
    assert "Gradient norm of 1,200 tensors over steps 0 to 29." in page_text
    assert "Highest: 7 in experts.1100.weight at step 20." in page_text
    goes(browser, HEAT, Keys.PAGE_DOWN * 120, "experts.1199.weight · step 29 · 0.5")


def test_exponents_are_seen_against_what_float16_can_hold(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = healthy_run(client)
    measure(stream, 0, {-10: 50, -4: 50})
    measure(stream, 20, {-16: 30, -30: 10, -10: 40}, zeros=19, nonfinite=1)
    stream.send()
    page_text = open_run(browser, client, stream, EXPONENTS)
    assert (
        "At step 20: 40 % below 2⁻¹⁴, where float16 loses bits, 10 % below 2⁻²⁴, its smallest, 19 % zero, " in page_text
    )
    assert "1.0 % NaN or Inf. NaN or Inf from step 20." in page_text
    scaled = "Scaled gradients, as stored in float16: multiplied by the loss scale, 2¹⁶ at the last reading."
    assert scaled in page_text
    assert scaled == text(browser, "#exponents .card > div > p.quiet")
    goes(browser, EXPONENTS, Keys.ARROW_DOWN, "step 20 · loss scale 2¹⁶ · from 2⁻¹⁵ to 2⁻¹⁴: 0 %")
    goes(browser, EXPONENTS, Keys.ARROW_DOWN, "step 20 · loss scale 2¹⁶ · from 2⁻¹⁶ to 2⁻¹⁵: 30 %")
    goes(browser, EXPONENTS, Keys.PAGE_UP * 7, "step 20 · loss scale 2¹⁶ · NaN or Inf: 1.0 %")
    goes(browser, EXPONENTS, Keys.ARROW_LEFT, "to 19 · not measured")
    goes(browser, EXPONENTS, Keys.HOME, "step 0 · loss scale 2¹⁶ · NaN or Inf: 0 %")


def test_nothing_is_drawn_over_steps_whose_exponents_were_not_read(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = healthy_run(client, 100)
    for step in (0, 40, 99):
        measure(stream, step, dict.fromkeys(range(LOWEST, LOWEST + BINS - 2), 10), zeros=10)
    stream.send()
    open_run(browser, client, stream, EXPONENTS)
    assert (
        0.02 < wait_until(lambda: browser.execute_script(DRAWN, EXPONENTS)) < 0.05
    )  # three readings of a hundred steps


def test_a_curve_leads_only_over_steps_that_were_read(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 420 * STEP)
    for step in range(400):
        read = step < 100 or step % 100 == 50 or step >= 300
        stream.tell(step, {"loss": 1.0, "scale": 65536.0} | ({"grad_norm": 1.0} if read else {}))
    stream.send()
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "figcaption", "Gradient norm")
    places = [step / 399 for step in (50, 120, 150, 200, 250, 280, 350)]
    wait_until(lambda: any(drawn_in_chart(browser, 2, places)))
    assert [True] * 7 == drawn_in_chart(browser, 2, places)
    assert [True, False, True, False, True, False, True] == drawn_in_chart(browser, 1, places)


def test_without_full_statistics_it_says_so(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = healthy_run(client)
    show(browser, client, f"/runs/{stream.run}")
    come_to(browser, "#exponents")
    appears(browser, "#exponents .empty", "No full statistics of this run yet: every eighth full reading counts")


def test_hostile_names_of_tensors_are_text(browser: webdriver.Chrome, client: httpx.Client) -> None:
    name = '<img src=x onerror="window.broken=1">\u202egnp.weight'
    tensors = (Tensor(name, (8, 8), "float32"), *TENSORS)
    stream = Stream(client, schema=Schema(("grad_norm",), ("grad.norm",), tensors), begin=time.time_ns() - 60 * STEP)
    stream.tell(0, {"grad_norm": 1.0}, {"grad.norm": {name: math.nan}})
    stream.send()
    shown = name.replace("\u202e", "\ufffd")
    assert f"the last of them in the model is {shown}." in open_run(browser, client, stream, HEAT)
    assert shown in appears(browser, "#heat .worst", "gnp.weight")
    goes(browser, HEAT, Keys.HOME, shown)
    assert browser.execute_script("return window.broken === undefined && !document.querySelector('main img')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_fit_a_narrow_window_and_can_be_read(
    browser: webdriver.Chrome, client: httpx.Client, scheme: str
) -> None:
    stream = broken_run(client)
    measure(stream, 20, {-10: 50, -4: 50})
    stream.send()
    with seen_as(browser, scheme, 600):
        open_run(browser, client, stream, EXPONENTS)
        described(browser, HEAT)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 600
        assert [] == browser.execute_script(LOW_CONTRAST)
