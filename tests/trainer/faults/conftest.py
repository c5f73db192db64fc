from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import broken
import train
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import STEPS, Check, Symptom, options_of


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def check(seen: Seen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Trains with a fault, then calls the function that asserts its symptoms."""

    def train_and_check(name: str, arch: str, symptom: Symptom) -> None:
        words = ["--tiny", "--arch", arch, "--steps", str(STEPS), "--fault", name]
        run = broken.main([*words, *(option.format(tempfile.gettempdir()) for option in options_of(symptom))])
        model, scaler = seen.model, seen.scaler
        monkeypatch.setattr(train, "ammeter", Seen())  # for the healthy run that the symptom compares with
        symptom(run, seen)
        assert (model, scaler) == (seen.model, seen.scaler)

    return train_and_check
