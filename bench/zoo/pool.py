"""Runs the cases, a few at a time, in processes forked from this one, which has imported torch."""

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
from bench.zoo.runner import Result, load_texts, remove, run

CASE_SECONDS = 240.0
"""Time limit of a case with all its trainings; every training has a limit of its own as well."""

_FORK = multiprocessing.get_context("fork")


@dataclass
class _RunningCase:
    """A case and its process."""

    case: Case
    folder: Path
    process: ForkProcess
    until: float

    @property
    def answer(self) -> Path:
        return self.folder / "result"


def run_all(
    cases: Sequence[Case], folder: Path, workers: int, *, first: int, results_file: Path | None = None
) -> list[Result]:
    """Runs all cases, seed by seed, so that an interrupted run covers all faults equally.

    Args:
        first: The seed whose cases run in anomaly mode as well.
        results_file: A file to which each result is appended at once; cases with a result in it do not run again.

    Returns:
        The results in the order of the cases.
    """
    load_texts()
    done = {result.case: result for result in _read_results(results_file)}
    waiting = [(number, case) for number, case in enumerate(cases) if case not in done]
    waiting.sort(key=lambda entry: entry[1].seed)
    all_running: list[_RunningCase] = []
    began = time.monotonic()
    try:
        while waiting or all_running:
            while waiting and len(all_running) < workers:
                number, case = waiting.pop(0)
                all_running.append(_started(case, folder / str(number), anomaly=case.seed == first and not case.frugal))
            wait([running.process.sentinel for running in all_running], timeout=1.0)
            for running in [running for running in all_running if _is_over(running)]:
                all_running.remove(running)
                done[running.case] = result = _result(running)
                _print_progress(
                    result, len(cases) - len(waiting) - len(all_running), len(cases), time.monotonic() - began
                )
                _append(result, results_file)
                remove(running.folder)
    finally:
        for running in all_running:
            _end(running)
    return [done[case] for case in cases]


def _append(result: Result, results_file: Path | None) -> None:
    if results_file:
        with results_file.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")


def _read_results(results_file: Path | None) -> list[Result]:
    lines = results_file.read_bytes().split(b"\n")[:-1] if results_file and results_file.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def _started(case: Case, folder: Path, *, anomaly: bool) -> _RunningCase:
    folder.mkdir()
    process = _FORK.Process(target=_alone, args=(case, folder, anomaly))
    process.start()
    return _RunningCase(case, folder, process, time.monotonic() + CASE_SECONDS)


def _alone(case: Case, folder: Path, anomaly: bool) -> None:
    """Runs in the child, which leads a process group, so that its own children end with it."""
    os.setsid()
    try:
        result = run(case, folder, anomaly=anomaly)
    except Exception:  # noqa: BLE001 - reported with the case; the others continue
        result = Result(case, None, [], trouble=traceback.format_exc())
    (folder / "result").write_bytes(msgspec.json.encode(result))


def _is_over(running: _RunningCase) -> bool:
    if running.process.is_alive() and time.monotonic() < running.until:
        return False
    _end(running)
    return True


def _end(running: _RunningCase) -> None:
    """Ends the process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(running.process.pid or 0, signal.SIGKILL)
    running.process.join()


def _result(running: _RunningCase) -> Result:
    if running.answer.exists():
        return msgspec.json.decode(running.answer.read_bytes(), type=Result)
    return Result(running.case, None, [], trouble=f"no answer; the process ended with {running.process.exitcode}")


def _print_progress(result: Result, number: int, of: int, seconds: float) -> None:
    found = ", ".join(f"{finding['verdict']} at {finding['opened_step']}" for finding in result.findings) or "nothing"
    trouble = f"; {result.trouble.strip().splitlines()[-1]}" if result.trouble else ""
    print(f"{number:>4}/{of} {seconds:6.1f} s  {result.case}: {found}{trouble}", flush=True)
