"""What each tensor would lose in another format, as the page shows it, in a browser."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import Select

from tests.server.browsing import LOW_CONTRAST, appears, found, press, seen_as, show, text
from tests.server.counted import say_exponents, spread
from tests.server.feeding import STEP, Stream, train, wait_until
from tests.server.web.pictures import come_to, questions

ROWS = "#what-if tbody tr"


def run(client: httpx.Client) -> Stream:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 39)
    tensors = {"embed.weight": spread(8), "blocks.0.mlp.fc.weight": spread(30, 4), "head.weight": spread(38, 10)}
    say_exponents(stream, 30, {**tensors, "unused.bias": [0.0] * 4})
    say_exponents(stream, 30, {"embed.weight": [0.5, 0.25]}, scale=1.0, of="weight")
    stream.send()
    return stream


def look(browser: webdriver.Chrome, client: httpx.Client, stream: Stream, words: str) -> str:
    show(browser, client, f"/runs/{stream.run}")
    wait_until(lambda: found(browser, "#what-if summary"))
    come_to(browser, "#what-if")
    return appears(browser, "#what-if", words)


def names(browser: webdriver.Chrome) -> list[str]:
    return [element.text for element in found(browser, f"{ROWS} th")]


def widths(browser: webdriver.Chrome, row: int) -> dict[str, float]:
    """The shares of a strip's width that its parts take."""
    script = (
        "const bar = document.querySelectorAll('#what-if .shares')[arguments[0]]; const all = bar.clientWidth;"
        "return Object.fromEntries([...bar.children].map((part) => [part.className, part.clientWidth / all]))"
    )
    parts: dict[str, float] = browser.execute_script(script, row)
    return parts


def choose(browser: webdriver.Chrome, name: str, value: str) -> None:
    Select(found(browser, f"#what-if-{name}")[0]).select_by_value(value)


def test_each_tensor_has_its_shares_and_the_narrowest_format(browser: webdriver.Chrome, client: httpx.Client) -> None:
    page = look(browser, client, run(client), "Of 4 tensors")
    assert "Of 4 tensors: 1 down to FP8 e4m3fn, 1 down to FP8 e5m2, 1 down to float16" in page
    assert ["head.weight", "blocks.0.mlp.fc.weight", "embed.weight", "unused.bias"] == names(browser)
    head, _, embed, unused = (element.text.split("\n") for element in found(browser, ROWS))
    assert ["head.weight", "2¹⁰ 0 % 26 % 7.9 % float16 at 2¹⁴"] == head
    assert ["embed.weight", "2¹⁰ 0 % 0 % 0 % FP8 e4m3fn at 2¹⁷"] == embed
    assert ["unused.bias", "– – – – only zeros were read"] == unused
    assert {"normal": 25 / 38, "subnormal": 10 / 38, "flushed": 3 / 38} == pytest.approx(widths(browser, 0), abs=0.02)
    assert "from readings at steps 30 to 30" in page
    assert "what its fewer bits do to training is not judged" in page


def test_format_scale_and_weights_are_chosen(browser: webdriver.Chrome, client: httpx.Client) -> None:
    look(browser, client, run(client), "Of 4 tensors")
    choose(browser, "format", "float8_e4m3fn")
    appears(browser, "#what-if", "elements as FP8 e4m3fn")
    assert widths(browser, 0)["flushed"] > 0.3
    choose(browser, "scale", "2^32")
    appears(browser, ROWS, "2³²")
    assert [True] * 3 == ["overflow" in widths(browser, row) for row in range(3)]
    assert {"bad"} == {str(element.get_attribute("class")).split()[1] for element in found(browser, f"{ROWS} td.bad")}
    choose(browser, "scale", "best")
    appears(browser, ROWS, "2¹⁷")
    choose(browser, "of", "weight")
    appears(browser, "#what-if", "Of 1 tensor: 1 down to FP8 e4m3fn")
    assert ["embed.weight"] == names(browser)


def test_without_readings_it_says_so(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 9)
    stream.send()
    look(browser, client, stream, "No gradients were counted by tensor yet")
    assert "" == text(browser, ROWS)


def test_many_tensors_are_folded_and_their_names_are_text(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 9)
    name = '<img src=x onerror="window.broken=1">\u202egnp.weight'
    say_exponents(stream, 4, {name: spread(60, 20), **{f"layers.{at}.weight": spread(8) for at in range(29)}})
    stream.send()
    look(browser, client, stream, "Of 30 tensors")
    assert 15 == len(names(browser))
    assert name.replace("\u202e", "\ufffd") == names(browser)[0]
    press(browser, "#what-if .more button")
    wait_until(lambda: len(names(browser)) == 30)
    assert browser.execute_script("return window.broken === undefined && !document.querySelector('main img')")


def test_a_small_sample_shows_how_unsure_it_is(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 9)
    say_exponents(stream, 4, {"few.weight": [1.0] * 30 + [2.0**-40]}, elements=10**6)
    stream.send()
    page = look(browser, client, stream, "Of 1 tensor")
    assert "1 undecided" in page
    assert re.search(r"3.2 %\n±9.7 %", found(browser, ROWS)[0].text)


def test_a_folded_part_asks_for_nothing(browser: webdriver.Chrome, client: httpx.Client) -> None:
    with seen_as(browser, "light", 1280, 400):
        show(browser, client, f"/runs/{run(client).run}")
        appears(browser, ".events tbody", "scaler.seen")
        assert 0 == questions(browser, "/what-if")
        come_to(browser, "#what-if")
        wait_until(lambda: questions(browser, "/what-if"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_part_fits_a_narrow_window_and_can_be_read(
    browser: webdriver.Chrome, client: httpx.Client, scheme: str
) -> None:
    with seen_as(browser, scheme, 600):
        look(browser, client, run(client), "Of 4 tensors")
        choose(browser, "format", "float8_e4m3fn")
        appears(browser, "#what-if", "elements as FP8 e4m3fn")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 600
        assert [] == browser.execute_script(LOW_CONTRAST)
