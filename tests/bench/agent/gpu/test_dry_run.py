"""The whole GPU benchmark where there is no GPU: a stand-in takes CUDA's place, so that each line is executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.agent.gpu.parts import PARTS
from bench.common.paths import RESULTS, ROOT

pytestmark = pytest.mark.long


def test_each_part_of_the_command_runs_and_measures(tmp_path: Path) -> None:
    out, before = tmp_path / "gpu.md", (RESULTS / "gpu.md").read_bytes()
    command = [sys.executable, "-m", "bench.agent.gpu.start", "--dry-run", "--seconds", "290", "--out", str(out)]
    environment = {**os.environ, "GPU_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=295)
    text = done.stdout + done.stderr
    assert 0 == done.returncode, text[-8000:]
    assert before == (RESULTS / "gpu.md").read_bytes()
    written = out.read_text()
    assert "DRY RUN" in text
    assert "DRY RUN" in written
    rows = [
        line.split(" | ") for line in written.splitlines() if line.startswith(tuple(f"| {name} |" for name in PARTS))
    ]
    assert list(PARTS) == list(dict.fromkeys(row[0].removeprefix("| ") for row in rows))
    assert not [row for row in rows if "FAILED" in row[-1] or "left out" in row[-1]]
    assert not [row for row in rows if row[3].strip() and "not judged" not in row[4]], "a dry run reached a goal"
