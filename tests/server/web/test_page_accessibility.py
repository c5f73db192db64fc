"""Every view passes the rules of axe-core, in light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from selenium import webdriver

from tests.server.accessibility import violations
from tests.server.browsing import LOW_CONTRAST, appears, broken_run, console, seen_as, show
from tests.server.feeding import Stream, serving, train

VIEWS = {
    "/": (".runs tbody", "broken gpt"),
    "/incidents": ("#list tbody", "Non-finite gradients"),
    "/alerts": ("#channels", "json-"),
    "/projects/demo": ("#readiness", "Ready for production"),
    "/runs/{broken}": ("#events tbody", "skipped"),
    "/runs/{broken}/compare": (".choice", "twin"),
    "/runs/{broken}/compare/{twin}": ("#differences", "differ"),
    "/compare?runs={broken},{twin}": ("#differences", "differ"),
    "/runs/{broken}x": ("main", "Run not found"),
    "/runbooks/": ("main", "unbook"),
    "/runbooks/scale-collapse": ("main", "How to check"),
}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    notify = ("json://127.0.0.1:9/hook",)
    with serving(tmp_path_factory.mktemp("collector"), notify=notify) as client:
        broken = broken_run(client, name="broken gpt", tags={"owner": "lena"})
        twin = Stream(client, name="twin", config={"lr": 1e-3, "precision": "fp16"}, begin=broken.begin)
        train(twin, 0, 60)
        twin.send()
        yield client, {"broken": broken.run, "twin": twin.run}


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_can_be_used_by_everybody(
    browser: webdriver.Chrome,
    addresses: tuple[httpx.Client, dict[str, str]],
    view: str,
    scheme: str,
    width: int,
) -> None:
    client, runs = addresses
    with seen_as(browser, scheme, width):
        show(browser, client, view.format(**runs))
        appears(browser, *VIEWS[view])
        assert [] == violations(browser)
        assert [] == browser.execute_script(LOW_CONTRAST)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        browser.get("about:blank")
        if "x" == view[-1]:
            console(browser)  # the 404s that were asked for
