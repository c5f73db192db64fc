"""Runs inside the test process keep their journals on disk: a mirror process for each run would be hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_tmpfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter.watching.delivery.TMPFS_FOLDER", Path("/no-tmpfs"))
