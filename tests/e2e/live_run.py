"""A program that trains until it is stopped, and delivers to a collector."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.server.feeding import wait_until

PROGRAM = """
import os, sys, time
import torch, ammeter
torch.set_num_threads(1)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(16, 1)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())

    def forward(self, x):
        return self.head(self.body(x))

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = ammeter.watch(model, optimizer, name="asked", project="tests")
print(run.id, flush=True)
while not os.path.exists(sys.argv[1]):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
run.close()
"""
"""The head is registered first and runs last."""


@contextmanager
def live_run(client: httpx.Client, folder: Path) -> Iterator[str]:
    """Yields the id of the run once steps of it have arrived."""
    stop, program = folder / "stop", folder / "program.py"
    program.write_text(PROGRAM)
    settings = {"AMMETER_DIR": str(folder / "journals"), "AMMETER_URL": str(client.base_url)}
    command = [sys.executable, str(program), str(stop)]
    with subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        try:
            wait_until(lambda: client.get(f"/api/v1/runs/{run}").json().get("last_step"))
            yield run
        finally:
            stop.touch()
            assert 0 == process.wait(60)
