"""The GPU benchmark without a GPU: its parts, time limits and result file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from bench.agent import gpu
from tests import forked


def test_without_a_gpu_the_script_stops_with_an_explanation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert 1 == gpu.main([])
    assert "no CUDA device" in capsys.readouterr().out


def test_the_parts_of_the_gpu_script_write_one_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "subprocess", forked.as_module())
    out = tmp_path / "gpu.md"
    assert 0 == gpu.main(["--cpu", "--only", "cost,kernel", "--out", str(out)]), capsys.readouterr().out
    text = out.read_text()
    assert ["kernel", "cost"] == [name for name, part in gpu.PARTS.items() if f"## {part.title}\n" in text]
    assert {"ammeter", "ammeter, preset full", "module hooks that do nothing", "ammeter, norms"} <= set(
        re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    )


def test_a_hanging_part_is_ended_and_its_output_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import time\nprint('measured so far', flush=True)\nwhile True: time.sleep(1)\n")
    monkeypatch.setattr(gpu, "COMMAND", [sys.executable, str(script)])
    ended, said = gpu.run_in_process("cost", cpu=True, seconds=6)
    assert ("it took longer than 6 s", "measured so far") == (ended, said)


def test_a_failing_part_shows_its_error_and_the_next_part_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu, "run_in_process", lambda name, cpu: ("it ended with 1", "no memory") if name == "cost" else ("", "|x|")
    )
    out = tmp_path / "gpu.md"
    assert 1 == gpu.main(["--cpu", "--only", "cost,kernel", "--out", str(out)])
    text = out.read_text()
    assert "no memory" in text
    assert "**This part failed: it ended with 1.**" in text
    assert "|x|" in text


def test_the_time_limits_of_all_parts_sum_to_less_than_eight_minutes() -> None:
    assert 480 > sum(part.seconds for part in gpu.PARTS.values())
