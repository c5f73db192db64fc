"""Programs for `ammeter canary`, and the command itself, in new interpreters: precision is set as torch is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGIN = """
import sys, time, torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.randn(64, 16)
targets = inputs.sum(1, keepdim=True)


def update(loss, scaler=None):
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


"""


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


def canary(
    body: str, folder: Path, *options: str, steps: int = 60, form: tuple[str, ...] = ("--json",), **environment: str
) -> Answer:
    """Runs `ammeter canary` on a script in the folder, which gets the journals, too."""
    (folder / "script.py").write_text(BEGIN + textwrap.dedent(body))
    words = [sys.executable, "-m", "ammeter", "canary", "--steps", str(steps), *form, *options]
    done = subprocess.run(
        [*words, "--", sys.executable, "script.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "AMMETER_DIR": str(folder / "ammeter"), **environment},
        timeout=180,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
