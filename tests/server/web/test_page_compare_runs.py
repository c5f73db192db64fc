"""Several runs are selected in the list and compared; events are sentences. In a real browser."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.server.accessibility import violations
from tests.server.browsing import appears, broken_run, console, found, press, show, text
from tests.server.feeding import STEP, Stream, serving, wait_until

HOSTILE = '<img src=x onerror="window.harmed=1">'


@pytest.fixture
def client(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client
        browser.get("about:blank")


def trained(client: httpx.Client, name: str, parts_at: int = 10**6, **named: Any) -> Stream:
    """A run whose loss is the common one, and twice that from a step on."""
    stream = Stream(client, name=name, begin=time.time_ns() - 220 * STEP, **named)
    for step in range(200):
        loss = (1.0 + 3.0 * math.exp(-step / 60)) * (2.0 if step >= parts_at else 1.0)
        stream.tell(step, {"loss": loss, "applied": 1.0, "skipped": 0.0, "step_seconds": 0.1, "scale": 1024.0})
    stream.bye(199)
    stream.send()
    return stream


def test_runs_are_selected_and_compared_with_the_one_in_float32(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    base = trained(client, "float32", config={"lr": 1.0})
    same = trained(client, "together", config={"lr": 1.0})
    apart = trained(client, HOSTILE, parts_at=120, config={"lr": 2.0})
    show(browser, client, "/")
    appears(browser, ".runs tbody", "together")
    for name in ("together", "float32", HOSTILE):
        boxes = found(browser, ".runs input[type=checkbox]")
        next(box for box in boxes if box.get_attribute("aria-label") == f"Select {name}").click()
    assert "3 selected" in appears(browser, "#selection", "Compare 3 runs")
    press(browser, "#compare-runs")
    rows = appears(browser, ".results tbody", "they do not")
    assert "Runs against together" == text(browser, "h1")  # no run has a known precision, so the first one
    for words in ("float32", HOSTILE, "baseline", "120"):
        assert words in rows, words
    assert "1 2" in text(browser, "#differences tbody tr").replace("same ", "")
    assert 3 == len({stream.run for stream in (base, same, apart)} & set(browser.current_url.split("=")[1].split(",")))
    browser.find_element(By.XPATH, "//table[contains(@class, 'results')]//button[.='120']").click()
    appears(browser, "#head", "Show all steps, not only 70 to 170")
    press(browser, "#all-steps")
    wait_until(lambda: not found(browser, "#all-steps"))
    move = "arguments[0].value = 0.9; arguments[0].dispatchEvent(new Event('input'))"
    browser.execute_script(move, found(browser, "#smoothing")[0])
    assert "0.90" in text(browser, ".smoothing")
    wait_until(lambda: 3 == len([chart for chart in found(browser, "figure canvas") if chart.is_displayed()]))
    assert browser.execute_script("return window.harmed === undefined && !document.querySelector('main img')")


def test_a_run_that_is_not_there_and_a_single_run_are_explained(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    run = trained(client, "one").run
    show(browser, client, f"/compare?runs={run}")
    appears(browser, "#compare-runs", "Select two to eight runs")
    show(browser, client, f"/compare?runs={run},nobody")
    appears(browser, "#compare-runs", "Run not found")
    console(browser)  # the 404 that was asked for


SLOWEST = {"addmm": 0.5, "svd": 0.25, "_other": 0.25}


def test_events_are_sentences_that_are_filtered_by_kind(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client)
    stream.say("collectives.census", 50, calls=[{"op": "all_reduce", "dtype": "float16"}] * 5)
    operators = [
        {"op": op, "dtype": "float32", "calls": 2, "typical_seconds": seconds} for op, seconds in SLOWEST.items()
    ]
    stream.say("kernels.timed", 50, phase="forward", steps=2, operators=operators)
    stream.say("strange.happened", 50, items=list(range(100)), deep={"a": [1, 2]}, label=HOSTILE)
    stream.send()
    show(browser, client, f"/runs/{stream.run}")
    rows = appears(browser, "#events tbody", "Strange happened: items (100), deep (1), label <img")
    assert "5 kinds of communication between ranks: all_reduce in float16" in rows
    timed = (
        "Operators of 2 sampled steps were timed; of their time in the forward pass, 50 % addmm in float32, 25 % svd"
    )
    assert timed in rows
    assert "_other" not in rows
    assert "3 gradients not finite, 1 finite; the last one is blocks.1.mlp.fc.weight" in rows
    assert "Time (" in text(browser, "#events thead")
    Select(found(browser, "#event-kind")[0]).select_by_visible_text("Loss scale")
    wait_until(lambda: "gradients not finite" not in text(browser, "#events tbody"))
    assert "The loss scale fell from 2⁹ to 2⁸" in text(browser, "#events tbody")
    Select(found(browser, "#event-kind")[0]).select_by_visible_text("Mistakes in calls")
    appears(browser, "#events tbody", "No event of this kind.")
    assert browser.execute_script("return window.harmed === undefined && !document.querySelector('main img')")


def test_a_live_run_is_asked_for_more_and_the_answer_is_shown(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client, name="live")
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, ".ask summary", "Ask this run for more")
    press(browser, ".ask summary")
    press(browser, "#ask")
    appears(browser, "#answers", "waits for the next batch")

    def answered() -> list[dict[str, Any]]:
        stream.tell(stream.offset, {"loss": 1.0})
        directives: list[dict[str, Any]] = stream.send().json()["directives"]
        return directives

    (asked,) = wait_until(answered)
    assert ("origin", 5) == (asked["arm"], asked["steps"])
    stream.begin = time.time_ns() - stream.offset * STEP
    peak = {"module": HOSTILE, "absmax": 60000.0, "share": 0.92}
    stream.say("activation.peaks", stream.offset, modules=[peak])
    stream.send()
    answer = appears(browser, "#answers", "The largest activation is 60,000")  # all that an older Ammeter sends
    assert "received by 1 of 1 process" in answer
    stream.say("directive.done", stream.offset, id=asked["id"], arm="origin", first_step=1, steps=5, read_steps=5,
               seconds=0.0125, step_seconds=0.5, bad_steps=0, modules=3,
               largest={"module": HOSTILE, "absmax": 32752.0, "dtype": "float16"})  # fmt: skip
    stream.send()
    answer = appears(browser, "#answers", "Nothing was found: losses and gradients were finite in 5 steps")
    for words in ("hooks on 3 modules", "32,752 in <img", "50 % of its limit", "It cost 12.5 ms in 5 steps of 500 ms"):
        assert words in answer, words
    assert "The largest activation is 60,000" not in answer
    assert browser.execute_script("return window.harmed === undefined && !document.querySelector('main img')")


def test_compared_charts_share_a_cursor_and_zoom_by_keys(browser: webdriver.Chrome, client: httpx.Client) -> None:
    runs = [trained(client, f"seed {seed}") for seed in range(8)]
    show(browser, client, f"/compare?runs={','.join(run.run for run in runs)}")
    appears(browser, ".results tbody", "they do not")
    wait_until(lambda: len(found(browser, ".plot:not([hidden])")) > 1)
    browser.set_window_size(1280, 1400)
    first, second = found(browser, ".plot:not([hidden])")[:2]
    first.send_keys(Keys.HOME + Keys.ARROW_RIGHT * 20)
    wait_until(lambda: "step20" in "".join(second.text.split()))
    assert "Step 20, Loss: seed 0 " in str(found(browser, "#main > [role=status]")[0].get_attribute("textContent"))
    colours = "return new Set([...document.querySelectorAll('.plot .u-marker')].map((m) => m.style.borderColor)).size"
    assert 8 <= browser.execute_script(colours)
    assert 8 <= browser.execute_script("return document.querySelectorAll(\".u-marker[style*='dashed']\").length")
    first.send_keys("+")
    appears(browser, "#compare-runs", "not only 10 to")
    first.send_keys("-")
    wait_until(lambda: "not only" not in text(browser, "#compare-runs"))
    browser.set_window_size(1280, 1000)
    assert [] == violations(browser)
