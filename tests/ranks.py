"""Runs a program on several ranks with what `torchrun --standalone` gives them: its variables and a store.

Each rank is a fork of a process that has imported torch. torchrun starts an interpreter for itself and one per rank,
which costs ten seconds of CPU for two ranks. A test about torchrun itself, such as restarts, starts torchrun.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from tests import forked

HOST = "127.0.0.1"


class RankError(AssertionError):
    """A rank ended with another exit code than 0, or not in time."""


def run(
    command: Sequence[str | Path], count: int, *, timeout: float, env: Mapping[str, str], cwd: Path | None = None
) -> str:
    """Runs `sys.executable ARGUMENTS` on each rank and returns their output, rank by rank.

    The other ranks are killed as soon as one fails. Raises RankError with the output of the first that failed.
    """
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
        processes = []
        for variables in _variables(count, store.port):
            process = stack.enter_context(forked.Popen(command, cwd=cwd, env={**env, **variables}, **streams))
            stack.callback(process.kill)
            processes.append(process)
        results = [threads.submit(_output, process, timeout) for process in processes]
        ended, running = wait(results, return_when=FIRST_EXCEPTION)
        for process in processes if running else []:
            process.kill()
        errors = [error for result in ended if (error := result.exception())]
    if errors:
        raise errors[0]
    return "".join(result.result() for result in results)


def without_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without Ammeter's settings and what a scheduler has set."""
    return {name: value for name, value in environment.items() if not name.startswith(("AMMETER_", "SLURM_"))}


def _variables(count: int, port: int) -> Iterator[dict[str, str]]:
    """The variables that torchrun sets for each rank; its ranks use the store of their launcher."""
    run_id = str(uuid.uuid4())
    for rank in map(str, range(count)):
        yield {
            **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count)),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


def _output(process: subprocess.Popen[str], timeout: float) -> str:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise RankError(f"a rank hangs: {out[-1500:]}{err[-3000:]}") from None
    if process.returncode:
        raise RankError(f"a rank ended with {process.returncode}: {out[-1500:]}{err[-3000:]}")
    return str(out)
