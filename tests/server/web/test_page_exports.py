"""Exports of what the pictures of a run show, in a browser."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.parts import library
from tests.server.browsing import appears, found, press, show
from tests.server.feeding import STEP, Stream, wait_until
from tests.server.web.pictures import EXPONENTS, HEAT, come_to, described, measure

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(browser: webdriver.Chrome, tmp_path: Path) -> Path:
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    return tmp_path


@pytest.fixture(scope="module")
def stream(client: httpx.Client) -> Stream:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP, name='=evil,"name"')
    for step in range(30):
        row = {"loss": 0.1, "scale": 1024.0} | ({"grad_norm": math.inf if step == 12 else 0.5} if step % 4 == 0 else {})
        stream.tell(step, row, {"grad.norm": {"head.weight": math.nan if step == 3 else 2.0}} if step < 10 else {})
    measure(stream, 20, {-16: 30, -10: 70}, zeros=5, nonfinite=1)
    stream.say("checkpoint.saved", 25, path="/x.pt", seconds=1.0, steps=25)
    stream.send()
    return stream


def table_in(file: bytes) -> Any:
    return library("pyarrow.parquet").read_table(io.BytesIO(file))


def saved(browser: webdriver.Chrome, folder: Path, section: str, kind: str) -> bytes:
    """The file that the section's menu saves."""
    come_to(browser, section)
    if not found(browser, f"{section} .export[open]"):
        press(browser, f"{section} .export summary")
    press(browser, f"{section} .export [data-kind={kind}]")

    def file() -> Path | None:
        return next((path for path in folder.glob(f"*-{'[0-9a-f]' * 8}.{kind}") if path.stat().st_size), None)

    path: Path = wait_until(lambda: file() if not [*folder.glob("*.crdownload")] else None)
    return path.read_bytes()


def open_at(browser: webdriver.Chrome, client: httpx.Client, stream: Stream, query: str = "") -> None:
    show(browser, client, f"/runs/{stream.run}{query}")
    come_to(browser, "#health")
    appears(browser, "#health", "Loss scale")


def test_the_rows_of_health_are_saved_with_the_readings_alone(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream, folder: Path
) -> None:
    open_at(browser, client, stream)
    appears(browser, "#health", "Checkpoints")
    rows = [*csv.DictReader(io.StringIO(saved(browser, folder, "#health", "csv").decode()))]
    norms = [(int(row["step"]), float(row["value"])) for row in rows if row["series"] == "grad_norm"]
    assert [(step, math.inf if step == 12 else 0.5) for step in range(0, 30, 4)] == norms
    assert 30 == sum(row["series"] == "loss" for row in rows)
    assert [("saved", "25")] == [(row["series"], row["step"]) for row in rows if row["series"] == "saved"]
    table = table_in(saved(browser, folder, "#health", "parquet")).to_pylist()
    assert len(rows) == len(table)
    assert [{"series": "loss", "stream": "", "replaced": "no", "step": 3, "value": pytest.approx(0.1)}] == [
        row for row in table if (row["series"], row["step"]) == ("loss", 3)
    ]
    assert saved(browser, folder, "#health", "png").startswith(PNG)


def test_only_the_chosen_steps_are_saved(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream, folder: Path
) -> None:
    open_at(browser, client, stream, "?from=10&to=20")
    appears(browser, "#health .filters", "Steps 10 to 20")
    told = json.loads(saved(browser, folder, "#health", "json"))
    assert "over steps 10 to 20" in told["title"]
    assert "?from=10&to=20" in told["address"]
    norms = [(row["step"], row["value"]) for row in told["rows"] if row["series"] == "grad_norm"]
    assert [(12, "Infinity"), (16, 0.5), (20, 0.5)] == norms


def test_cells_are_saved_with_the_step_of_their_reading(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream, folder: Path
) -> None:
    open_at(browser, client, stream)
    described(browser, HEAT)
    table = table_in(saved(browser, folder, "#heat", "parquet")).to_pydict()
    assert ([*range(10)], {"head.weight"}, {"grad.norm"}) == (table["step"], {*table["tensor"]}, {*table["stat"]})
    assert math.isnan(table["value"][3])
    assert saved(browser, folder, "#heat", "png").startswith(PNG)


def test_exponents_are_saved_at_the_scale_that_is_shown(
    browser: webdriver.Chrome, client: httpx.Client, stream: Stream, folder: Path
) -> None:
    open_at(browser, client, stream, "?scale=10")
    described(browser, EXPONENTS)
    rows = [*csv.DictReader(io.StringIO(saved(browser, folder, "#exponents", "csv").decode()))]
    assert [("exponent", "-22", "30"), ("exponent", "-16", "70"), ("zero", "nan", "5"), ("nonfinite", "nan", "1")] == [
        (row["kind"], row["exponent"], row["elements"]) for row in rows
    ]
    assert {("20", "20", "65536")} == {(row["step"], row["last_step"], row["recorded_scale"]) for row in rows}


def test_a_link_to_what_is_shown_is_copied(browser: webdriver.Chrome, client: httpx.Client, stream: Stream) -> None:
    open_at(browser, client, stream, "?from=10&to=20")
    origin = str(client.base_url).rstrip("/")
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions, "origin": origin})
    press(browser, "#health .export summary")
    press(browser, "#health .export [data-kind=link]")
    appears(browser, "#health .export", "Copied")
    assert browser.current_url == browser.execute_script("return navigator.clipboard.readText()")
    assert [] == browser.find_elements(By.CSS_SELECTOR, "#health .problem:not([hidden])")
