"""Programs and libraries that some tests need and not every machine has: promtool, chromium, transformers.

A test whose part is missing is skipped with a message. With CI=true it fails, because CI has everything installed.
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from typing import Any, NoReturn

import pytest


def need(*names: str) -> str:
    """Returns the path of the first installed program."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or missing(f"{' or '.join(names)} is not on PATH; install it to run this test")


def library(name: str) -> Any:
    """Imports a library at the top of a test file, which is skipped without it."""
    try:
        return import_module(name)
    except ImportError as error:
        if _is_complete():
            raise
        pytest.skip(f"{name} cannot be imported ({error}); run `make install`", allow_module_level=True)


def missing(reason: str) -> NoReturn:
    """Ends the test: skipped on a developer's machine, failed if CI=true."""
    if _is_complete():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _is_complete() -> bool:
    """Whether this machine is said to have every part."""
    return os.environ.get("CI", "").lower() == "true"
