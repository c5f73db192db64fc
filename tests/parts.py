"""Programs that some tests need and not every machine has: promtool, chromium.

A test whose program is missing is skipped with a message. With CI=true it fails, because CI has everything installed.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def need(*names: str) -> str:
    """Returns the path of the first installed program."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or missing(f"{' or '.join(names)} is not on PATH; install it to run this test")


def missing(reason: str) -> NoReturn:
    """Ends the test: skipped on a developer's machine, failed if CI=true."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
