"""A person asks a live run for more on its page, and sees the answer arrive. In a real browser, with a real run."""

from __future__ import annotations

from pathlib import Path

from selenium import webdriver

from tests.e2e.live_run import live_run
from tests.server.browsing import LOW_CONTRAST, appears, choose, found, press, seen_as, show, text
from tests.server.feeding import serving


def test_a_census_is_asked_of_a_live_run_and_its_answer_arrives(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(tmp_path) as client, live_run(client, tmp_path) as run:
        show(browser, client, f"/runs/{run}")
        appears(browser, ".ask summary", "Ask this run for more")
        press(browser, ".ask summary")
        choose(browser, "#ask-reading", "census")
        assert "The operators of the forward pass are counted" in text(browser, ".ask")
        assert "1" == found(browser, "#ask-steps")[0].get_attribute("value")
        press(browser, "#ask")
        appears(browser, "#answers", "Operators and their dtypes, 1 step, asked at")
        answer = appears(browser, "#answers", "100 % of the FLOPs of matrix products, convolutions and attention")
        for words in (
            "received by 1 of 1 process",
            "1 kind of operators ran inefficiently",
            "It cost ",
            "addmm float16 2 modules 100 %",
            "addmm in head ran in float16 (misaligned), 11 % of the FLOPs",
        ):
            assert words in answer.replace("\n", " "), words
        assert "has not arrived" not in answer
        for scheme in ("light", "dark"):
            with seen_as(browser, scheme, 390, 844):
                assert [] == browser.execute_script(LOW_CONTRAST)
                assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        browser.get("about:blank")
