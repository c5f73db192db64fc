"""One browser for all files of the page's tests in a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.server import browsing


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture(autouse=True)
def quiet_console(browser: webdriver.Chrome) -> Iterator[None]:
    browsing.console(browser)
    yield
    assert [] == browsing.complaints(browser)
