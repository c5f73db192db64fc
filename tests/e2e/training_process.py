"""A training program as a process, with its journal and its shipper."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ammeter import journal
from ammeter.wire import frames
from tests import forked
from tests.e2e import stored
from tests.e2e.processes import DEADLINE, rows_of

PROGRAM = """
import os, sys, time
import torch, ammeter
torch.manual_seed(0)
torch.set_num_threads(1)
stop, steps, pause, width = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7, growth_factor=1.5)
run = ammeter.watch(model, optimizer, scaler, name="e2e", project="tests")
print(run.id, flush=True)
for step in range(steps):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    run.log(samples=4)
    time.sleep(pause)
    if os.path.exists(stop):
        break
run.close()
print(step + 1)
"""
"""A training program. Arguments: file that ends it, maximum number of steps, pause between them, width of the model."""


class Training:
    """A real training process under AMMETER_URL."""

    def __init__(
        self, folder: Path, url: str | None, *words: Any, prefix: tuple[str, ...] = (), **environment: str
    ) -> None:
        self.journals = folder / "journals"
        settings = {"AMMETER_DIR": str(self.journals), **({"AMMETER_URL": url} if url else {}), **environment}
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self._stop = folder / f"stop-{time.time_ns()}"
        self._errors = folder / f"training-{time.time_ns()}.log"
        command = [*prefix, sys.executable, str(program), str(self._stop), *map(str, words)]
        with self._errors.open("w") as errors:
            popen = subprocess.Popen if prefix else forked.Popen
            self.process = popen(
                command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        self.run = self.process.stdout.readline().strip()
        assert self.run, self.errors()

    def wait(self, seconds: float = DEADLINE) -> int:
        """Returns the number of steps once it has ended well."""
        code = self.process.wait(seconds)
        assert 0 == code, self.errors()
        assert self.process.stdout is not None
        steps = int(self.process.stdout.readline())
        self._close()
        return steps

    def finish(self) -> int:
        """Ends the program after its present step. Returns the number of steps."""
        self._stop.touch()
        return self.wait()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._close()

    def errors(self) -> str:
        return self._errors.read_text()

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def written(self) -> stored.Rows:
        """stream -> (step, the bits of its row) of every row in the journal."""
        return {folder.name: rows_of(folder) for folder in journal.streams(self.journals / self.run)}

    def shippers(self) -> list[int]:
        """Returns process ids of the shippers of this run."""
        return [pid for pid in _processes() if self.run in _command(pid) and "ammeter.shipper.process" in _command(pid)]


def last_words(training: Training) -> frames.Bye | None:
    """Returns the final record in the journal of a run with one stream."""
    (folder,) = journal.streams(training.journals / training.run)
    byes = [entry.frame for entry in journal.read(folder) if isinstance(entry.frame, frames.Bye)]
    return byes[-1] if byes else None


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
