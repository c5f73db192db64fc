"""Checks for every test: it leaves nothing of Ammeter attached, open or running."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx._transports.default as transport
import pytest

from ammeter.preparation import import_hook
from tests import quick

import_hook.remove()  # tests of the notes start them; in all others watch() attaches everything
os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny: more threads would mostly wait for each other

# httpx reads the certificates of all authorities for each client, which takes 25 ms; once per process is enough
transport.create_ssl_context = functools.cache(transport.create_ssl_context)  # type: ignore[attr-defined]


MAX_NEW_MODULES = 50
MAX_TESTS = 50
"""Modules that are imported, and tests that are run, until all living objects are frozen again."""

_numbers = itertools.count()
_frozen_modules = _frozen_tests = _tests = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run the tests of what has changed; tests/quick.py says how")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--quick") and quick.is_ignored(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs files marked `long` first.

    If the last one to start were long, all workers would wait.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"{addresses[0]!r} has an address in its name, which differs in each worker; give ids=")
    if config.getoption("--quick"):
        quick.select(config, items)


def pytest_collection_finish() -> None:
    _freeze()


def _freeze() -> None:
    """Exempts all living objects from garbage collection, and from the search for a checkpoint at each watch().

    A full collection took a third of a second, a search a tenth; torch.compile alone imports 100,000 objects.
    """
    global _frozen_modules, _frozen_tests
    gc.collect()
    gc.freeze()
    _frozen_modules, _frozen_tests = len(sys.modules), _tests


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else libraries report frozen objects as leaks, Hypothesis in the summary already


def _journal_files() -> set[str]:
    """Journal files that this process has open."""
    opened = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.endswith(("/alive", ".seg", "shipper.lock")):
            opened.add(target)
    return opened


def _hooks() -> list[object]:
    """Everything of Ammeter that torch would still call."""
    from torch.optim import optimizer  # noqa: F401 - imported for its module below

    from ammeter.torch_hooks import patch

    module = sys.modules["torch.optim.optimizer"]
    return [
        *patch.attached(),
        *module._global_optimizer_pre_hooks.values(),
        *module._global_optimizer_post_hooks.values(),
    ]


def _lasting(before: set[threading.Thread]) -> set[threading.Thread]:
    """Threads that a test has started and that keep the process alive.

    A server shared by tests has others.
    """
    return {thread for thread in threading.enumerate() if thread not in before and not thread.daemon}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    global _tests
    threads, files = set(threading.enumerate()), _journal_files()
    yield
    assert [] == _hooks()
    assert set() == _journal_files() - files
    deadline = time.monotonic() + 5
    while _lasting(threads) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set() == _lasting(threads)
    _tests += 1
    if len(sys.modules) - _frozen_modules > MAX_NEW_MODULES or _tests - _frozen_tests >= MAX_TESTS:
        _freeze()


@pytest.fixture(autouse=True)
def _settings_of_this_machine_do_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in list(os.environ):
        if name.startswith(("AMMETER_", "SLURM_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    folder = tmp_path_factory.getbasetemp() / "ammeter" / str(next(_numbers))  # not made: few tests need it
    monkeypatch.setenv("AMMETER_DIR", str(folder))
