"""Programs that know nothing of Ammeter, run by `ammeter run`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import forked
from tests.agent.programs import Program

TRAINS = """
import os, signal, sys, time
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def step():
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()


"""
"""What a script has that trains; step() makes one step."""

WAIT = "time.sleep(0.3)  # so that whoever looks on has seen the run begin\n"

AMMETER = [sys.executable, "-m", "ammeter", "run"]
PYTHON = [sys.executable, "script.py"]


def launch(
    body: str,
    folder: Path,
    *,
    begin: str = TRAINS,
    options: Sequence[str] = (),
    command: Sequence[str] = PYTHON,
    through: Sequence[str] = AMMETER,
    fresh: bool = False,
    levels: int = 1,
    **environment: str,
) -> Program:
    """Starts `ammeter run OPTIONS -- COMMAND` in a process group of its own; the script lies in `folder`.

    `ammeter run` and the command are forks of a process that has imported torch, as far as they are this Python.
    through: nothing runs the command bare. fresh: whether new interpreters run them, for what is about their start.
    levels: 2 if the Python processes that the command starts are forks too, beside which there is then their server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(begin + textwrap.dedent(body))
    dir = folder / "ammeter"
    words = [*through, *options, *(["--"] if through else []), *command]
    settings: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": folder,
        "env": {**os.environ, "AMMETER_DIR": str(dir), **environment},
        "start_new_session": True,
    }
    if fresh or words[0] != sys.executable:
        return Program(subprocess.Popen(words, **settings), dir)
    return Program(forked.Popen(words, imports=forked.LAUNCH, levels=levels, **settings), dir)
