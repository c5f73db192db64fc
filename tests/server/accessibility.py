"""axe-core in the page under test: rules for people who use a keyboard, a screen reader or strong contrast."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from selenium import webdriver

from tests import parts

RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(
  ({ violations }) => done(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`)),
  (error) => done([String(error)]));
"""


def violations(browser: webdriver.Chrome) -> list[str]:
    """Returns the rules that the present page violates, each with its first elements."""
    browser.execute_script(_source())
    found: list[str] = browser.execute_async_script(RUN)
    return found


@cache
def _source() -> str:
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        parts.missing("axe-playwright-python, which contains axe-core, is not installed; run `make install`")
    return (Path(package.origin).parent / "axe.min.js").read_text()
