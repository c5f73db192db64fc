"""Trains the reference program, as a program of its own or in this process, and reads the report of its run."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ammeter.__main__ import main
from ammeter.verdicts.framework.finding import Finding
from ammeter.watching import delivery
from tests import forked
from tests.agent.verdicts.claims import unfounded

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "trainer"))  # where `python trainer/broken.py` finds its own files
import broken  # noqa: E402 - the line above has to come first
import data  # noqa: E402
from faults import REGISTRY  # noqa: E402

__all__ = ["ENDS", "READ_OFTEN", "REGISTRY", "ROOT", "reported", "train", "train_here"]

SMALL = ("--tiny", "--steps", "60", "--eval-every", "1000")
"""Options of a run of 60 small steps."""

ENDS = {"run-lost": -9, "unsupported-op": 1}
"""Faults that end the process, and its exit codes."""

READ_OFTEN = {"lost-updates", "gradient-underflow", "no-loss-scaling", "poisoned-buffers"}
"""Faults whose weights, buffers and full statistics the default budget reads too rarely for sixty steps this small."""

_load_once = functools.cache(data.load)


def train(folder: Path, *words: str) -> int:
    """Trains as a program of its own, watched, with the journal in this folder. Returns its exit code."""
    environment = {**os.environ, "AMMETER_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment |= {"AMMETER_BUDGET": "0.5"} if READ_OFTEN & set(words) else {}
    command = [sys.executable, "trainer/broken.py", *SMALL, *words]
    ran = forked.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=120)
    assert ran.returncode in (0, *ENDS.values()), ran.stderr
    return ran.returncode


def train_here(folder: Path, *words: str, budget: str = "") -> None:
    """Trains in this process, for half the CPU time: texts are loaded once, and no process mirrors the journal."""
    settings = {"AMMETER_DIR": str(folder)} | ({"AMMETER_BUDGET": budget} if budget else {})
    with _restored(settings):
        broken.main([*SMALL, *words])


@contextmanager
def _restored(settings: Mapping[str, str]) -> Iterator[None]:
    """Restores what a fault changes in torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread does for steps this small
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(torch, "__version__", torch.__version__)
        patch.setattr(data, "load", _load_once)
        patch.setattr(delivery, "TMPFS_FOLDER", ROOT / "no-tmpfs")
        for name, value in settings.items():
            patch.setenv(name, value)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Exit code and document of `ammeter report`; each finding claims only what it has evidence for."""
    capsys.readouterr()
    code = main(["report", str(folder), "--json"])
    report = json.loads(capsys.readouterr().out)
    for finding in report["findings"]:
        assert [] == list(unfounded(msgspec.convert(finding, Finding)))
    return code, report
