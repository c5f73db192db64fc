from __future__ import annotations

import io
import os
import pty

import pytest

from console import ProgressBar
from tests.trainer.conftest import Trains


def test_the_summary_says_how_it_went(tiny: Trains, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny("--steps", "8", "--fault", "scale-collapse@6")
    assert (8, 6, 16384.0) == (run.steps, run.applied, run.scale)
    last = capsys.readouterr().out
    assert "done: 8 steps, 6 applied, 2 skipped" in last
    assert f"validation loss {run.val_loss:.4f}, final scale 16384" in last


def test_in_a_pipe_progress_is_plain_lines(tiny: Trains, capsys: pytest.CaptureFixture[str]) -> None:
    tiny("--steps", "6", "--log-every", "2")
    out = capsys.readouterr().out
    assert ["step 2/6", "step 4/6", "step 6/6"] == [line[:8] for line in out.splitlines() if line.startswith("step")]
    assert "\r" not in out
    assert "\033" not in out


def test_on_a_terminal_progress_is_one_line_that_moves() -> None:
    main, terminal = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as screen, os.fdopen(terminal, "w") as stream:
        bar = ProgressBar(10, 0, stream)
        bar.numbers(5, "loss 2.5")
        bar.move(5)
        shown = screen.read(1000).decode()
    assert shown.startswith("\r")
    assert "█" * 12 + "·" * 12 + " 5/10  loss 2.5" in shown
    assert "\n" not in shown


def test_a_line_that_stays_is_a_whole_line() -> None:
    stream = io.StringIO()
    ProgressBar(10, 0, stream).line("hello")
    assert "hello\n" == stream.getvalue()
