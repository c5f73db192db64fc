"""A process that has imported torch and forks a child for each program it is told of: seconds less for each of many.

A child runs its script as __main__ and ends as an interpreter does. Run as a script this is that process; Nursery
talks to it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agent.programs import Ended

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


class Nursery:
    """start() it, have programs run, stop() it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, body: str, folder: Path, *, watched: bool, seconds: float = 60, **environment: str) -> Ended:
        """Runs a program to its end, its journal in folder/ammeter."""
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "script.py"
        script.write_text(BEGIN + (WATCHED if watched else BARE) + textwrap.dedent(body))
        environment = {"AMMETER_DIR": str(folder / "ammeter"), **environment}
        asked = {"folder": str(folder), "environment": environment, "seconds": seconds}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        out, err = ((folder / name).read_text() for name in ("out", "err"))
        err = err.partition("nanobind: leaked")[
            0
        ]  # triton's word at the end of an interpreter whose objects are frozen
        return Ended(answer["code"], out, err, folder / "ammeter", answer["left"])

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout
        self._process.stdout.close()


@dataclass
class Twins:
    """The same program, run bare and watched."""

    bare: Ended
    watched: Ended

    def told(self) -> list[str]:
        """What only the watched one said on stderr. That they ended alike is asserted."""
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


def twins(nursery: Nursery, body: str, folder: Path, seconds: float = 60, **environment: str) -> Twins:
    """A program that says bits() of what it trained; `watch` is ammeter's in the one, and does nothing in the other."""
    bare = nursery.run(body, folder / "bare", watched=False, seconds=seconds, **environment)
    watched = nursery.run(body, folder / "watched", watched=True, seconds=seconds, **environment)
    return Twins(bare, watched)


def main() -> None:
    import torch

    import ammeter.watching.setup  # noqa: F401 - so that no child has to

    gc.freeze()  # the end of an interpreter looks at every object it knows: in a child, that is every page copied

    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            sys.stdin.close()
            _become(asked)
            return
        print(json.dumps(_await(child, asked["seconds"])), flush=True)


def _await(child: int, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, 9)
        time.sleep(0.005)
    return {"code": os.waitstatus_to_exitcode(found[1]), "left": _end_group(child)}


def _end_group(group: int) -> bool:
    """Whether a process of the group is left, which is ended then."""
    deadline = time.monotonic() + 5
    try:
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.01)
        os.killpg(group, 9)
    except ProcessLookupError:
        return False
    return True


def _become(asked: dict[str, Any]) -> None:
    """This process is the program from here on."""
    folder = Path(asked["folder"])
    os.setsid()
    os.chdir(folder)
    os.environ.update(asked["environment"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, folder / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, folder / "err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(path, flags)
        os.dup2(file, number)
        if file > 2:
            os.close(file)
    script = folder / "script.py"
    sys.argv = [str(script)]
    main = sys.modules["__main__"]
    for name in [name for name in vars(main) if not name.startswith("__")]:
        delattr(main, name)
    vars(main)["__file__"] = str(script)
    vars(main)["__spec__"] = None
    code = compile(script.read_text(), str(script), "exec")
    exec(code, vars(main))


if __name__ == "__main__":
    main()
