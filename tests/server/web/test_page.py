from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from tests.server.browsing import (
    LOW_CONTRAST,
    appears,
    broken_run,
    console,
    found,
    press,
    press_until,
    seen_as,
    show,
    text,
)
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until

HOSTILE = '<script>window.broken=1</script><img src=x onerror="window.broken=1"> "quoted" \u202egnp.exe'
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def client(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client
        browser.get("about:blank")  # a page that goes on asking would complain that nobody answers


def test_an_empty_list_says_what_to_do_next(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        show(browser, client, "/")
        said = appears(browser, "#runs", "No runs yet")
        assert f"export AMMETER_URL={str(client.base_url).rstrip('/')}" in said
        assert "ammeter.watch(model, optimizer, scaler)" in said
        browser.get("about:blank")


def test_the_list_shows_runs_and_what_is_open(browser: webdriver.Chrome, client: httpx.Client) -> None:
    broken_run(client, name="broken gpt", project="speech")
    healthy = Stream(client, name="healthy vit", project="vision", begin=time.time_ns() - 60 * STEP)
    train(healthy, 0, 50)
    healthy.send()
    show(browser, client, "/")
    rows = appears(browser, ".runs tbody", "broken gpt")
    assert "healthy vit" in rows
    assert "1 urgent" in rows
    assert "2¹⁶" in rows
    assert "blocks.1.mlp.fc" in appears(browser, "#alarms", "broken gpt")


def test_a_run_says_on_top_what_is_wrong_where_and_what_to_do(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client, name="broken gpt")
    incident = client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"][0]
    show(browser, client, f"/runs/{stream.run}")
    card = appears(browser, "#incidents article", incident["title"])
    for words in (incident["cause"], incident["fix"], "blocks.1.mlp.fc.weight", "41", "1 consequence", "Runbook"):
        assert words in card
    assert browser.title.startswith("(!) broken gpt")
    assert "2⁸ = 256" in text(browser, ".figures")
    appears(browser, ".tensors tbody tr:first-child", "blocks.1.mlp.fc.weight")
    assert "The loss scale fell from 2⁹ to 2⁸" in appears(browser, ".events tbody", "scaler.backoff")
    captions = appears(browser, "figcaption", "9 skipped steps marked")
    assert "9 non-finite points marked" in captions
    assert 3 == len(found(browser, "figure canvas"))


def test_a_run_that_is_over_still_shows_what_was_found(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, name="clipped", begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    stream.say("usage.clip_before_unscale", 0, caller="train.py:12", max_norm=1.0, scale=65536.0)
    stream.say("values.logged", 40, loss=1.5, samples=32.0)
    stream.say("values.logged", 40, val_loss=2.5)
    stream.bye(40)
    stream.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])
    show(browser, client, f"/runs/{stream.run}")
    assert "No incidents" not in appears(browser, "#incidents", "The run has ended; 1 closed with the run:")
    assert "train.py:12" in appears(browser, "#incidents details.closed article", "clipped before unscale_")
    events = appears(browser, ".events tbody", "val_loss 2.5")
    assert "samples 32" not in events


def test_a_run_that_came_back_leads_to_what_came_after_and_back(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    first = Stream(client, name="nightly", begin=time.time_ns() - 4 * 3600 * 10**9)
    train(first, 0, 5)
    first.bye(5)
    first.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{first.run}").json()["state"] == "ended")
    again = Stream(client, run=first.run, name="nightly again", begin=time.time_ns() - 20 * STEP)
    train(again, 0, 5)
    again.send()
    show(browser, client, f"/runs/{first.run}")
    appears(browser, "#head", "Next run of this id")
    press(browser, "#head a")
    appears(browser, "h1", "nightly again")
    appears(browser, "#head", "Previous run of this id")


def test_a_skip_that_was_got_over_is_no_alarm(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    break_down(stream, 41, 41)
    stream.tell(42, {"scale": 32768.0, "applied": 1.0, "skipped": 0.0, "loss": 1.4, "step_seconds": 0.1})
    stream.send()
    show(browser, client, f"/runs/{stream.run}")
    assert "NaN" in appears(browser, ".figures", "last measured at a skipped step")
    assert [] == found(browser, ".figures .bad")


def test_an_incident_is_acknowledged_on_the_page(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client)
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#incidents .buttons", "Acknowledge")
    press(browser, "#incidents .buttons button")
    appears(browser, "#incidents footer", "acknowledged")
    assert "acknowledged" == client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"][0]["state"]


def test_a_step_of_an_incident_and_a_tensor_are_shown_in_the_charts(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = broken_run(client, at=141)
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, ".spot button", "141")
    appears(browser, "figcaption", "training")
    press(browser, ".spot button")
    appears(browser, ".charts .filters", "Steps 81 to 149")
    press(browser, "#all-steps")
    wait_until(lambda: not found(browser, "#all-steps"))
    appears(browser, ".tensors tbody", "head.weight")
    press_until(browser, ".tensors tbody button", "figcaption", "Gradient norm of blocks.1.mlp.fc.weight")
    wait_until(lambda: 4 == len(found(browser, "figure canvas")))


def test_a_live_run_grows_before_ones_eyes(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = Stream(client, name="live", begin=time.time_ns() - 20 * STEP)
    train(stream, 0, 10)
    stream.send()
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#incidents", "No incidents.")
    press(browser, ".unjudged summary")
    unjudged = appears(browser, ".unjudged", "not judged: too few readings")
    assert "The run is too short so far: " in unjudged
    assert "gradient-spike (11 of 65 gradient norms)" in unjudged
    appears(browser, ".figures", "10")
    train(stream, 11, 17)
    stream.send()
    appears(browser, ".figures", "17")


def test_hostile_names_are_shown_as_text(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = broken_run(client, name=HOSTILE, project=HOSTILE, config={HOSTILE: HOSTILE})
    shown = HOSTILE.replace("\u202e", "\ufffd")
    show(browser, client, f"/runs/{stream.run}")
    assert shown == appears(browser, "h1", "gnp.exe")
    assert shown in appears(browser, ".facts", "gnp.exe")
    appears(browser, "#details summary", "Settings of the run")
    press(browser, "#details summary")
    appears(browser, "#details dd", "gnp.exe")
    show(browser, client, "/")
    appears(browser, ".runs tbody", shown)
    assert browser.execute_script("return window.broken === undefined && !document.querySelector('main img')")


def test_nested_settings_have_the_names_of_comparisons(browser: webdriver.Chrome, client: httpx.Client) -> None:
    config = {"lr": 0.1, "framework": {"name": "transformers", "hparams": {"width": 16}, "sizes": [1, 2]}}
    stream = Stream(client, name="nested", config=config, begin=time.time_ns() - 20 * STEP)
    train(stream, 0, 3)
    stream.send()
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "#details summary", "Settings of the run")
    press(browser, "#details summary")
    appears(browser, "#details", "framework.sizes")
    names = [element.text for element in found(browser, "#details dt")]
    assert ["lr", "framework.name", "framework.hparams.width", "framework.sizes"] == names[1:5]


def test_a_hostile_address_is_text_too(browser: webdriver.Chrome, client: httpx.Client) -> None:
    answer = client.get('/runs/"><script>alert(1)<!--')
    assert "<script>alert" not in answer.text
    assert 'data-run="&#34;&gt;&lt;script&gt;' in answer.text


def test_a_run_that_is_not_there_is_said_to_be_missing_until_it_comes(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = Stream(client, name="late", begin=time.time_ns() - 20 * STEP)
    show(browser, client, f"/runs/{stream.run}")
    appears(browser, "main", "Run not found")
    train(stream, 0, 10)
    stream.send()
    appears(browser, "h1", "late")
    console(browser)  # Chromium tells the 404s that were asked for


def test_each_rank_has_its_own_charts(browser: webdriver.Chrome, client: httpx.Client) -> None:
    first = Stream(client, world_size=2, begin=time.time_ns() - 60 * STEP)
    second = Stream(client, run=first.run, rank=1, world_size=2, begin=first.begin)
    train(first, 0, 30)
    train(second, 0, 30, scale=1024.0)
    for stream in (first, second):
        stream.send()
    show(browser, client, f"/runs/{first.run}")
    appears(browser, "figcaption", "2¹⁶")
    Select(found(browser, "#rank")[0]).select_by_value("1")
    appears(browser, "figcaption", "2¹⁰")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window_and_can_be_read(
    browser: webdriver.Chrome, client: httpx.Client, scheme: str, width: int
) -> None:
    stream = broken_run(client, name="a rather long name of a run that somebody gave it " * 3)
    with seen_as(browser, scheme, width):
        for path in (f"/runs/{stream.run}", "/"):
            show(browser, client, path)
            appears(browser, "main", "rather long name")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert [] == browser.execute_script(LOW_CONTRAST)


def test_two_runs_stand_side_by_side(browser: webdriver.Chrome, client: httpx.Client) -> None:
    streams = []
    for name, lr in (("float32", 3e-4), (HOSTILE, 6e-4)):
        stream = Stream(client, name=name, config={"lr": lr}, begin=time.time_ns() - 90 * STEP)
        train(stream, 0, 60)
        stream.send()
        streams.append(stream)
    base, run = streams
    show(browser, client, f"/runs/{run.run}")
    appears(browser, "#head .facts", "Compare with another run")
    browser.find_element(By.LINK_TEXT, "Compare with another run").click()
    appears(browser, ".choice", "float32")
    browser.find_element(By.LINK_TEXT, "float32").click()
    assert "against float32" in appears(browser, "h1", "against float32")
    assert "Speed" in text(browser, ".figures")
    assert "lr" in appears(browser, "#differences tbody", "6.00e−4")
    captions = appears(browser, "figcaption", "Device memory")
    assert "float32 2¹⁶" in captions
    wait_until(lambda: 5 == len([canvas for canvas in found(browser, "figure canvas") if canvas.is_displayed()]))
    assert "Not measured in both runs" in text(browser, "figure .empty")
    assert not browser.execute_script("return window.broken")
    show(browser, client, f"/runs/{run.run}/compare/nobody")
    appears(browser, "#compare", "Run not found")
    assert base.run in client.get(f"/runs/{run.run}/compare/{base.run}").text
    console(browser)  # the 404 that was asked for


def test_without_a_session_the_page_asks_for_a_token_and_goes_on(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(tmp_path, token=TOKEN) as client:
        stream = Stream(client, name="secret run", headers={"Authorization": f"Bearer {TOKEN}"})
        train(stream, 0, 5)
        stream.send()
        show(browser, client, "/")
        appears(browser, "#sign-in", "Sign in")
        assert "secret run" not in browser.page_source
        sign_in(browser, "wrong-token-wrong-token")
        appears(browser, "#sign-in-problem", "The token is unknown or has expired.")
        sign_in(browser, TOKEN)
        appears(browser, ".runs tbody", "secret run")
        assert "" == browser.execute_script("return document.cookie")
        browser.get("about:blank")


def sign_in(browser: webdriver.Chrome, token: str) -> None:
    field = found(browser, "#token")[0]
    field.clear()
    field.send_keys(token)
    press(browser, "#sign-in button")
