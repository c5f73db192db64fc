"""The same program, run once bare and once watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forked
from tests.agent.programs import Ended, end_group

BEGIN = """
import hashlib, os, signal, sys, threading, time
import torch

torch.manual_seed(0)
torch.set_num_threads(1)


def parts(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 2)
    )
    scaler = torch.amp.GradScaler("cpu", 2.0**10, growth_interval=5)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), scaler


model, optimizer, scaler = parts()
losses = []


def step(spoil=1.0, of=None, x=None):
    model, optimizer, scaler = of or parts_of_this_run
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(6, 8) if x is None else x).float().square().mean() * spoil
    losses.append(float(loss.detach()))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def bits(model=model, optimizer=optimizer, scaler=scaler):
    found = [*model.state_dict().values()]
    for slots in optimizer.state_dict()["state"].values():
        found += slots.values()
    found = [each.detach().double().numpy().tobytes() for each in found] + [torch.get_rng_state().numpy().tobytes()]
    return hashlib.sha256(b"".join(found) + repr((losses, scaler.state_dict())).encode()).hexdigest()[:16]


parts_of_this_run = model, optimizer, scaler
"""
"""step() makes one step of the run, of another model with of=...; bits() is a digest of all that training changed."""

BARE = """
class Bare:
    id = ""
    def log(self, **values): pass
    def close(self): pass


def watch(*parts, **options):
    return Bare()


"""

WATCHED = "\nfrom ammeter import watch\n" + "\n" * (BARE.count("\n") - 2)
"""As many lines, so that both programs speak of the same."""


def run(
    body: str,
    folder: Path,
    *,
    watched: bool,
    seconds: float = 60,
    settings: Mapping[str, str] | None = None,
    levels: int = 0,
    **environment: str,
) -> Ended:
    """Runs a program to its end, its journal in folder/ammeter.

    Its output goes to files: a process that it leaves behind may hold them open.
    settings: variables that an interpreter reads at its start. levels: 1 if its Python children are forks, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(BEGIN + (WATCHED if watched else BARE) + textwrap.dedent(body))
    variables = {**os.environ, "AMMETER_DIR": str(folder / "ammeter"), **(settings or {}), **environment}
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = forked.Popen(
            [sys.executable, script],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env=variables,
            start_new_session=True,
            settings=settings,
            levels=levels,
        )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = end_group(process.pid)
    return Ended(
        process.returncode, (folder / "out").read_text(), (folder / "err").read_text(), folder / "ammeter", left
    )


@dataclass
class Twins:
    """The same program, run bare and watched."""

    bare: Ended
    watched: Ended

    def extra_lines(self) -> list[str]:
        """Returns the lines on stderr of the watched program alone; asserts that both ended alike."""
        assert (self.bare.code, self.bare.out) == (self.watched.code, self.watched.out), self.watched.err
        left = _without_us(self.bare.err)
        more = []
        for line in _without_us(self.watched.err):
            if left and left[0].replace("/bare/", "/") == line.replace("/watched/", "/"):
                left.pop(0)
            else:
                more.append(line)
        assert [] == left, self.watched.err
        assert not self.watched.left
        return more


def _without_us(err: str) -> list[str]:
    """The lines without our frames in a traceback, and torch's, which goes another way where a module has hooks."""
    kept, ours = [], False
    for line in err.splitlines():
        if line.startswith("  File "):
            ours = "/agent/ammeter/" in line or "/site-packages/torch/" in line
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return kept


def twins(
    body: str,
    folder: Path,
    seconds: float = 60,
    settings: Mapping[str, str] | None = None,
    levels: int = 0,
    **environment: str,
) -> Twins:
    """A program that says bits() of what it trained; `watch` is ammeter's in the one, and does nothing in the other."""
    options: Any = {"seconds": seconds, "settings": settings, "levels": levels, **environment}
    bare = run(body, folder / "bare", watched=False, AMMETER_DISABLE="1", **options)
    watched = run(body, folder / "watched", watched=True, **options)
    return Twins(bare, watched)
