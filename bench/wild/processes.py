"""Runs programs: recorded ones in children of this process, watched ones as a user starts them.

Both are forks of processes that have imported torch, which otherwise takes most of their CPU time.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import torch._dynamo  # noqa: F401 - the first optimizer imports it, and each recorded program would do so again

from bench.common import watched
from bench.wild import ablation, oracle
from bench.wild.oracle import Recorder, Recording
from bench.wild.pieces.styles import STYLES
from bench.wild.program import Program
from bench.wild.recipe import Recipe

SCRIPT = "train.py"

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
        deadline = time.monotonic() + watched.PROGRAM_SECONDS
        for child in children:
            child.join(max(0.0, deadline - time.monotonic()))
        codes = [child.exitcode for child in children]
        for child in children:
            watched.kill_group(child.pid)
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
    ended = watched.watch(
        [str(script)],
        folder,
        ranks=style.ranks,
        launched=recipe.attach == "run",
        lives=style.lives,
        settings=ablation.environment(without),
    )
    return Watched(ended.code, sorted(_WEIGHTS.findall(ended.output)), ended.output[-4000:], ended.reports)


def _script(text: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    script = folder / SCRIPT
    script.write_text(text)
    return script


def _ranks(count: int) -> list[dict[str, str]]:
    if count == 1:
        return [{}]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": watched.free_port()}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


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
