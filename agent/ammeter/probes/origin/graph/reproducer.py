"""Writes an operator that made a NaN or an Inf, and its operands, as a program that shows it without the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter.environment import settings
from ammeter.probes.origin.graph.trial import Trial

FOLDER = "reproducers"
"""Folder of the programs in a run's folder."""

MAX_FILES = 5
"""Programs of a search. Operands have at most trial.MAX_ELEMENTS elements, so all files have 160 MiB at most."""

_PROGRAM = '''"""{op} made NaN or Inf in step {step}. Needs torch only; run it with: python {name}.py"""

from pathlib import Path

import torch
import torch.nn.functional as F

operands = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)


def run({parameters}):
    return {expression}


def double(value):
    if isinstance(value, torch.dtype):
        return torch.float64
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


for title, values in (("as in the training", operands), ("in float64", {{k: double(v) for k, v in operands.items()}})):
    results = run(**values)
    results = results if isinstance(results, (list, tuple)) else [results]
    output = torch.cat([result.flatten() for result in results if torch.is_tensor(result)])
    print(f"{{title}}: {{output.numel()}} elements, {{int((~output.isfinite()).sum())}} of them NaN or Inf; the largest"
          f" finite one is {{output[output.isfinite()].abs().max().item() if output.isfinite().any() else None}}")
'''


class Reproducers:
    """The programs that one search has written: one for each operator and answer."""

    def __init__(self, stream_folder: Path) -> None:
        self._folder = stream_folder
        self._is_on = settings.reproduces()
        self._written = set[tuple[str, str]]()

    def write(self, step: int, op: str, trial: Trial) -> dict[str, str]:
        """Returns the member of an event that names the program; empty if none was written."""
        if not (self._is_on and trial.expression) or len(self._written) >= MAX_FILES:
            return {}
        if (op, trial.answer) in self._written:
            return {}
        self._written.add((op, trial.answer))
        try:
            return {"reproducer": write(self._folder, step, op, trial)}
        except (OSError, RuntimeError):  # torch.save raises both on a full disk; the finding is worth more
            return {}


def write(stream_folder: Path, step: int, op: str, trial: Trial) -> str:
    """Writes the program and its operands.

    Args:
        stream_folder: the folder of this process in the run's folder. Its name keeps the ranks' files apart.

    Returns:
        The program's path relative to the run's folder.

    Raises:
        OSError, RuntimeError: a file could not be written; torch.save() raises the latter.
    """
    name = f"step-{step}-{op}-{stream_folder.name[:8]}"
    folder = stream_folder.parent / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    operands = {name: _own(value) for name, value in trial.operands.items()}
    torch.save(operands, folder / f"{name}.pt")
    program = _PROGRAM.format(op=op, step=step, name=name, parameters=", ".join(operands), expression=trial.expression)
    (folder / f"{name}.py").write_text(program, "utf-8")
    return f"{FOLDER}/{name}.py"


def _own(value: Any) -> Any:
    """A copy without the rest of the memory that a view shares, and without a graph."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
