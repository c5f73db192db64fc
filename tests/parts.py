"""Programs that some tests need and not every machine has: promtool, chromium.

Where one is missing the test is skipped and says so; with CI=true that is a failure, for there everything is installed.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def need(*names: str) -> str:
    """Path of the first of these programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or missing(f"{' or '.join(names)} is not on PATH; install it to run this test")


def missing(reason: str) -> NoReturn:
    """Ends the test: skipped on a developer's machine, failed where CI=true."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
