"""Runs programs: recorded ones in children of this process, watched ones as a user starts them.

Both are forks of processes that have imported torch, which otherwise takes most of their CPU time.
"""

from __future__ import annotations

import builtins
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch._dynamo  # noqa: F401 - the first optimizer imports it, and each recorded program would do so again

from bench.wild import ablation, oracle
from bench.wild.oracle import Recorder, Recording
from bench.wild.pieces.styles import STYLES
from bench.wild.program import Program
from bench.wild.recipe import Recipe
from tests import forked

PROGRAM_SECONDS = 300.0
"""Time limit of a program; the slowest sleeps for 10 s, and a busy machine takes longer."""

SCRIPT = "train.py"

REPORT = ("ammeter.report.command", "ammeter.verdicts")
"""Imports of `ammeter report`."""

_FORK = multiprocessing.get_context("fork")
_WEIGHTS = re.compile(r"^weights ([0-9a-f]{64})$", re.MULTILINE)


class Watched(msgspec.Struct, frozen=True):
    """A watched run. reports: one per run that Ammeter saw, as `ammeter report --json` prints it."""

    code: int | None
    digests: list[str]
    output: str
    reports: list[dict[str, Any]]


def record(recipe: Recipe, program: Program, folder: Path) -> Recording:
    """Runs the recorded text, without Ammeter and without its pauses."""
    script = _script(program.recorded, folder)
    style = STYLES[recipe.style]
    code: int | None = 0
    for _ in range(style.lives):
        children = [_FORK.Process(target=_recorded, args=(script, rank)) for rank in _ranks(style.ranks)]
        for child in children:
            child.start()
        deadline = time.monotonic() + PROGRAM_SECONDS
        for child in children:
            child.join(max(0.0, deadline - time.monotonic()))
        codes = [child.exitcode for child in children]
        for child in children:
            _kill_group(child.pid)
            child.join()
        code = next((code for code in codes if code != 0), 0)
        if code != 0:
            break
    output = "".join(file.read_text(errors="replace") for file in sorted(folder.glob("output*")))
    rows, names = oracle.read(folder / "rows0")
    other_rows, _ = oracle.read(folder / "rows1")
    return Recording(rows, code, sorted(_WEIGHTS.findall(output)), output[-4000:], names, other_rows)


def watch(recipe: Recipe, program: Program, folder: Path, without: str = "") -> Watched:
    """Runs the program as a user does, and reads the report. without: a hook that Ammeter does not get."""
    script, style = _script(program.text, folder), STYLES[recipe.style]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
    environment |= {"AMMETER_DIR": str(folder / "journal"), "OMP_NUM_THREADS": "1", **ablation.environment(without)}
    command, levels = [str(script)], 0
    if style.ranks > 1:
        command = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(style.ranks),
            "--master-port",
            _port(),
            *command,
        ]
        levels += 1
    if recipe.attach == "run":
        command = ["-m", "ammeter", "run", "--", sys.executable, *command]
        levels += 1
    code, output = 0, ""
    for _ in range(style.lives):
        code, more = _run(command, folder, environment, forked.LAUNCH, levels)
        output += more
        if code != 0:
            break
    asked = ["-m", "ammeter", "report", str(folder / "journal"), "--json", "--all"]
    reported, text = _run(asked, folder, environment, REPORT, errors=False)
    reports = json.loads(text)["items"] if reported in (0, 3) else []
    return Watched(code, sorted(_WEIGHTS.findall(output)), output[-4000:], reports)


def _script(text: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    script = folder / SCRIPT
    script.write_text(text)
    return script


def _run(
    arguments: list[str],
    folder: Path,
    environment: Mapping[str, str],
    imports: Sequence[str],
    levels: int = 0,
    *,
    errors: bool = True,
) -> tuple[int, str]:
    """Exit code and output of Python. After the time limit everything that it has started ends.

    levels: of the Python processes below it that are forks, too.
    """
    process = forked.Popen(
        [sys.executable, *arguments],
        imports=imports,
        levels=levels,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        output, _ = process.communicate()
    return process.returncode, output.decode(errors="replace")


def _ranks(count: int) -> list[dict[str, str]]:
    if count == 1:
        return [{}]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port()}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _recorded(script: Path, rank: dict[str, str]) -> None:
    """Runs in the child, as a program that was started with this rank."""
    os.setsid()
    number = rank.get("RANK", "0")
    with (script.parent / f"output{number}").open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
    os.environ.update(rank)
    os.chdir(script.parent)
    time.sleep = lambda _: None
    vars(builtins)["__wild__"] = Recorder(script.parent / f"rows{number}")
    try:
        exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})  # noqa: S102
    except BaseException:  # noqa: BLE001 - a program may fail; the recording has the reason
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def _kill_group(process: int | None) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process or 0, signal.SIGKILL)
