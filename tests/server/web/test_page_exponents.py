"""The spectrogram of gradient elements in other formats, at other scales, and of one tensor, in a browser."""

from __future__ import annotations

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from ammeter.tensors.exponents import BINS, LOWEST
from tests.server.browsing import LOW_CONTRAST, appears, found, press, seen_as, show, text
from tests.server.feeding import Stream, wait_until
from tests.server.web.pictures import (
    DRAWN,
    EXPONENTS,
    colours_at,
    come_to,
    described,
    goes,
    healthy_run,
    measure,
    open_run,
)


def counted_run(client: httpx.Client) -> Stream:
    stream = healthy_run(client)
    measure(stream, 20, {-30: 10, -16: 30, -10: 40, 5: 10}, zeros=10)
    cells = [8, 0, 0, 0, 0, 0, 0]
    entry = {"tensor": "head.weight", "elements": 8, "lowest": -12, "counts": cells, "zeros": 2, "nonfinite": 0}
    stream.say("tensor.exponents", 30, of="gradient", scale=65536.0, tensors=[{**entry, "absmax": 2.0**-12}])
    stream.send()
    return stream


def test_another_scale_and_format_show_what_would_be_lost(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = counted_run(client)
    open_run(browser, client, stream, EXPONENTS)
    recorded = "At the recorded scale, at least 10 % of the elements become zero in float16, and at least 0 % overflow."
    appears(browser, "#exponents-fates", recorded)
    slider = found(browser, "#exponents-scale")[0]
    assert "16" == slider.get_attribute("value")
    slider.send_keys(Keys.ARROW_LEFT * 9)
    appears(browser, "#exponents-fates", "At scale 2⁷, at least 10 % of the elements become zero in float16")
    slider.send_keys(Keys.ARROW_LEFT)  # 2^-16 at 2^16 is 2^-26 at 2^6
    appears(browser, "#exponents-fates", "At scale 2⁶, at least 40 % of the elements become zero in float16")
    goes(browser, EXPONENTS, Keys.HOME, "step 20 · loss scale 2⁶, recorded 2¹⁶ · from 2⁻¹⁴ to 2⁻¹³: 0 %")
    Select(found(browser, "#exponents-format")[0]).select_by_value("float8_e5m2")
    appears(browser, "#exponents-fates", "At scale 2⁶, at least 80 % of the elements become zero in FP8 e5m2")
    assert "lost in FP8 e5m2: becomes zero or overflows" in text(browser, "#exponents .legend")
    address = browser.current_url
    assert "scale=6&format=float8_e5m2" in address
    browser.get("about:blank")
    browser.get(address)
    described(browser, EXPONENTS, "At scale 2⁶, at least 80 % of the elements become zero in FP8 e5m2")
    press(browser, "#exponents-recorded")
    appears(browser, "#exponents-fates", "At the recorded scale, at least 10 % of the elements become zero in FP8 e5m2")
    Select(found(browser, "#exponents-format")[0]).select_by_value("float8_e4m3fn")
    assert "scale=" not in browser.current_url


def test_lost_elements_have_a_colour_of_their_own_where_they_were_read(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = healthy_run(client, 100)
    for step in (0, 99):
        measure(stream, step, dict.fromkeys(range(LOWEST, LOWEST + BINS - 2), 10))
    stream.send()
    open_run(browser, client, stream, EXPONENTS)
    assert 0.01 < wait_until(lambda: browser.execute_script(DRAWN, EXPONENTS)) < 0.05
    assert {"#00000000"} == colours_at(browser, EXPONENTS, 0.8, 0.5)
    ticket = browser.execute_script("return getComputedStyle(document.documentElement).getPropertyValue('--ticket')")
    seen = colours_at(browser, EXPONENTS, 0.8, 0.0) | colours_at(browser, EXPONENTS, 0.8, 0.995)
    assert any(colour.startswith(ticket[:2]) and colour[-2:] != "00" for colour in seen)


def test_one_tensor_has_a_spectrogram_of_its_own(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = counted_run(client)
    show(browser, client, f"/runs/{stream.run}?tensor=head.weight")
    come_to(browser, "#exponents")
    appears(browser, "#exponents-of", "head.weight")
    Select(found(browser, "#exponents-of")[0]).select_by_value("tensor")
    said = described(browser, EXPONENTS, "Gradient of head.weight.")
    assert "At step 30: 0 % below 2⁻¹⁴, where float16 loses bits, 0 % below 2⁻²⁴, its smallest, 20 % zero." in said
    assert "exponents=tensor" in browser.current_url
    show(browser, client, f"/runs/{stream.run}?tensor=embed.weight&exponents=tensor")
    come_to(browser, "#exponents")
    appears(browser, "#exponents .empty", "No exponents of embed.weight were counted")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: webdriver.Chrome, client: httpx.Client, scheme: str) -> None:
    stream = counted_run(client)
    with seen_as(browser, scheme, 390, 844):
        show(browser, client, f"/runs/{stream.run}?scale=4&tensor=head.weight")
        come_to(browser, "#exponents")
        appears(browser, "#exponents-fates", "At scale 2⁴")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert [] == browser.execute_script(LOW_CONTRAST)
