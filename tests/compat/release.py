"""The recorded release: its wheels, databases, journals and public names."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import forked

VERSION = "0.1.0"
RECORD = Path(__file__).parent / "releases" / VERSION
DATABASE = RECORD / "collector.db"
DUMP = RECORD / "postgresql.sql"
JOURNALS = RECORD / "journals"
REPORTS = RECORD / "reports.json"
PUBLIC = RECORD / "public.json"

LIBRARIES = (
    *("torch", "torch._dynamo", "numpy", "msgspec", "httpx", "fastapi", "uvicorn", "uvicorn.lifespan.on"),
    *("uvicorn.protocols.http.httptools_impl", "alembic.command", "sqlalchemy.dialects.sqlite.pysqlite"),
    *("sqlalchemy.dialects.postgresql.psycopg", "prometheus_client"),
)
"""What both versions import of others: programs of either are forks of a process that has done this."""

PROGRAM = """
import json, os, sys, time
import torch
import ammeter

steps, bad_from, hold_at, options = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50)
run = ammeter.watch(model, optimizer, scaler, config={"steps": steps, "lr": 1e-2}, **options)
print(run.id, ammeter.__file__, flush=True)
for step in range(steps):
    optimizer.zero_grad()
    inputs = torch.randn(16, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    if step >= bad_from:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    run.log(samples=16, **({"val_loss": loss.detach()} if step % 20 == 19 else {}))
    while step == hold_at and not os.path.exists("go-on"):
        time.sleep(0.02)
run.close()
"""
"""A training program with today's public API.

Arguments: steps, first step with an infinite loss, step after which it waits for a file `go-on`, options.
"""


@dataclass(frozen=True)
class Installation:
    """A version of both distributions that subprocesses import. site: its folder; None for this tree."""

    site: Path | None = None

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment in which a subprocess imports this version."""
        found = {**os.environ, **variables}
        found.pop("PYTHONPATH", None)
        return found if self.site is None else {**found, "PYTHONPATH": str(self.site)}

    def run(self, *words: str, **variables: str) -> str:
        """Standard output of `python -m WORDS`, which has to succeed."""
        done = self.process(*words, **variables)
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def process(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m WORDS`."""
        command = [sys.executable, "-m", *words]
        environment = self.environment(**variables)
        return forked.run(command, imports=LIBRARIES, env=environment, capture_output=True, timeout=120, cwd="/")

    def owns(self, file: str) -> bool:
        """Whether a module's file belongs to this version."""
        site = self.site or Path(__file__).parents[2] / "agent"
        return Path(file).resolve().is_relative_to(site.resolve())


NEW = Installation()


def install(site: Path, wheels: Path = RECORD) -> Installation:
    """The wheels of a folder, installed without their dependencies, which this environment has."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    command += ["--disable-pip-version-check", "--root-user-action=ignore", "--target", str(site)]
    command += map(str, sorted(wheels.glob("*.whl")))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Installation(site)
