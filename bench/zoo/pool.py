"""The cases of the zoo, a few at a time: each in a process that is forked from this one, which has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import msgspec

from bench.zoo.plan import Case
from bench.zoo.runner import Result, clean, run, texts

CASE_SECONDS = 240.0
"""Until a case is given up with all its trainings, each of which has a limit of its own."""

_FORK = multiprocessing.get_context("fork")


@dataclass
class _Going:
    """A case that is being run."""

    case: Case
    folder: Path
    process: ForkProcess
    until: float

    @property
    def answer(self) -> Path:
        return self.folder / "result"


def run_all(cases: Sequence[Case], folder: Path, workers: int, *, first: int, kept: Path | None = None) -> list[Result]:
    """What came of each, in the order given. Seed by seed: an interrupted run has tried as much of every fault.

    first: the seed with which anomaly mode has a look, too.
    kept: a file that gets each result at once; those that it holds already are not tried again.
    """
    texts()
    done = {each.case: each for each in _known(kept)}
    waiting = [(number, case) for number, case in enumerate(cases) if case not in done]
    waiting.sort(key=lambda each: each[1].seed)
    going: list[_Going] = []
    began = time.monotonic()
    try:
        while waiting or going:
            while waiting and len(going) < workers:
                number, case = waiting.pop(0)
                going.append(_started(case, folder / str(number), anomaly=case.seed == first and not case.frugal))
            wait([each.process.sentinel for each in going], timeout=1.0)
            for each in [each for each in going if _is_over(each)]:
                going.remove(each)
                done[each.case] = result = _result(each)
                _tell(result, len(cases) - len(waiting) - len(going), len(cases), time.monotonic() - began)
                _keep(result, kept)
                clean(each.folder)
    finally:
        for each in going:
            _end(each)
    return [done[case] for case in cases]


def _keep(result: Result, kept: Path | None) -> None:
    if kept:
        with kept.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")


def _known(kept: Path | None) -> list[Result]:
    lines = kept.read_bytes().split(b"\n")[:-1] if kept and kept.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def _started(case: Case, folder: Path, *, anomaly: bool) -> _Going:
    folder.mkdir()
    process = _FORK.Process(target=_alone, args=(case, folder, anomaly))
    process.start()
    return _Going(case, folder, process, time.monotonic() + CASE_SECONDS)


def _alone(case: Case, folder: Path, anomaly: bool) -> None:
    """In the child, which leads a group of its own, so that all that it starts can be ended with it."""
    os.setsid()
    try:
        result = run(case, folder, anomaly=anomaly)
    except Exception:  # noqa: BLE001 - told with the case; the others go on
        result = Result(case, None, [], trouble=traceback.format_exc())
    (folder / "result").write_bytes(msgspec.json.encode(result))


def _is_over(going: _Going) -> bool:
    if going.process.is_alive() and time.monotonic() < going.until:
        return False
    _end(going)
    return True


def _end(going: _Going) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(going.process.pid or 0, signal.SIGKILL)
    going.process.join()


def _result(going: _Going) -> Result:
    if going.answer.exists():
        return msgspec.json.decode(going.answer.read_bytes(), type=Result)
    return Result(going.case, None, [], trouble=f"no answer; the process ended with {going.process.exitcode}")


def _tell(result: Result, number: int, of: int, seconds: float) -> None:
    found = ", ".join(f"{each['verdict']} at {each['opened_step']}" for each in result.findings) or "nothing"
    trouble = f"; {result.trouble.strip().splitlines()[-1]}" if result.trouble else ""
    print(f"{number:>4}/{of} {seconds:6.1f} s  {result.case}: {found}{trouble}", flush=True)
