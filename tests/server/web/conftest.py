"""One browser for all files of the page's tests in a worker, and a collector for each file."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from selenium import webdriver

from tests.server import browsing
from tests.server.feeding import serving


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def client(browser: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("collector")) as client:
        yield client
        browser.get("about:blank")


@pytest.fixture(autouse=True)
def quiet_console(browser: webdriver.Chrome) -> Iterator[None]:
    browsing.console(browser)
    yield
    assert [] == browsing.complaints(browser)
