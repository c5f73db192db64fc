"""Kills training programs with SIGKILL and compares their last completed step with the step at the collector.

    python -m bench.agent.kills [--kills 50] [--step-ms 2] [--seed N] [--quick] [--write [FOLDER]]

Each program trains a network so deep that a step takes --step-ms, and is killed at a random moment. In
memory that outlives it, it notes each step before the call that completes it (optimizer.step(), or scaler.update()) and
after that call has returned. The step at the collector must be the last one noted as completed. It may be the next one
only if that one is noted as begun: the kill then came inside the call, or between its return and the note.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import HTTPError

import torch
from rich.console import Console

from ammeter.journal.process_lock import is_locked
from bench.agent.kills.worker import Notes, layers_for
from bench.collector import servers
from bench.collector.servers import Server
from bench.common.machine import cpu_model, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.paths import ROOT
from bench.common.tables import Row, markdown_table, terminal_table

PRECISIONS = ("bf16", "fp16")
"""fp16 trains with a GradScaler, so that its steps complete at update()."""

MAX_SECONDS = 2.0
"""Longest time from the first completed step to the kill: about a thousand steps, first followed and then fast."""

TIMEOUT_SECONDS = 60.0
"""Longest wait for the first step of a program, and for the end of its stream at the collector."""

SHIPPER_SECONDS = 20.0
"""Longest wait for the end of the shippers, which exit three seconds after their last writer."""

POLL_SECONDS = 0.02

HEADINGS = (
    *("precision", "kills", "step ms: quartile, median, quartile", "steps before the kill", "on the fast path"),
    *("same step", "one later", "wrong", "seconds to the end of the run: median, longest"),
)


@dataclass(frozen=True)
class Outcome:
    """A killed program and its run at the collector.

    Attributes:
        begun, completed: The last step of which the program noted the beginning, and the completion, of its last call.
        shown: The last step of the run at the collector; -1 for none.
        counted: The steps that the collector has counted.
        is_complete: Whether the run ended there as lost, without lost records.
        seconds: Time from the kill to the end of the run at the collector.
    """

    begun: int
    completed: int
    shown: int
    counted: int
    is_complete: bool
    was_fast: bool
    step_seconds: Sequence[float]
    seconds: float

    @property
    def is_same(self) -> bool:
        return self._is_consistent and self.shown == self.completed

    @property
    def is_next(self) -> bool:
        return self._is_consistent and self.shown == self.completed + 1 == self.begun

    @property
    def _is_consistent(self) -> bool:
        """Whether the collector has each step up to the last one."""
        return self.is_complete and self.counted == self.shown + 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 1 if a completed step is missing at the collector."""
    options = _options(arguments)
    drop_settings()
    load, dice = os.getloadavg()[0], random.Random(options.seed)
    outcomes: dict[str, list[Outcome]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory(prefix="ammeter-kills-") as folder, _collector(Path(folder)) as server:
        layers = {precision: layers_for(precision, options.step_ms / 1000) for precision in PRECISIONS}
        for number in range(options.kills):
            precision = PRECISIONS[number % len(PRECISIONS)]
            seconds = dice.uniform(0, MAX_SECONDS)
            outcomes[precision].append(kill_one(server, Path(folder), precision, layers[precision], seconds))
        wait_for_shippers(Path(folder))
    rows = [HEADINGS, *(row(precision, found) for precision, found in outcomes.items() if found)]
    machine = f"{cpu_model()}, {os.cpu_count()} cores, torch {torch.__version__}, load before: {load:.1f}"
    conclusion = conclusion_of([outcome for found in outcomes.values() for outcome in found])
    console = Console()
    console.print(terminal_table(rows, machine))
    console.print(conclusion, highlight=False)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "kills.md").write_text(markdown(rows, machine, conclusion, options))
    return int(any(_is_wrong(outcome) for found in outcomes.values() for outcome in found))


def kill_one(server: Server, folder: Path, precision: str, layers: int, seconds: float) -> Outcome:
    """Kills a program some seconds after its first step, and waits until the collector shows the end of its run."""
    run = str(uuid.uuid4())
    file = os.memfd_create("ammeter-kills")
    try:
        notes = Notes(file)
        with _program(server, folder, run, [precision, str(layers), str(file)], file) as program:
            _wait_for_first_step(program, notes)
            time.sleep(seconds)
            program.send_signal(signal.SIGKILL)
            program.wait()
            killed = time.monotonic()
        found = _ended_run(server, run)
        return Outcome(
            begun=notes.begun,
            completed=notes.completed,
            shown=-1 if found.get("last_step") is None else found["last_step"],
            counted=sum(found.get("counters", {}).get(name, 0) for name in ("applied", "skipped")),
            is_complete=found.get("state") == "lost" and not found["lost"],
            was_fast=notes.is_fast,
            step_seconds=notes.step_seconds(),
            seconds=time.monotonic() - killed,
        )
    finally:
        os.close(file)


def row(precision: str, outcomes: Sequence[Outcome]) -> Row:
    times = sorted(1000 * seconds for outcome in outcomes for seconds in outcome.step_seconds)
    quartiles = (times[len(times) * quarter // 4] for quarter in (1, 2, 3))
    steps = [outcome.completed + 1 for outcome in outcomes]
    ends = [outcome.seconds for outcome in outcomes]
    return (
        precision,
        str(len(outcomes)),
        " / ".join(f"{time:.2f}" for time in quartiles),
        f"{min(steps)} to {max(steps)}",
        str(sum(outcome.was_fast for outcome in outcomes)),
        str(sum(outcome.is_same for outcome in outcomes)),
        str(sum(outcome.is_next for outcome in outcomes)),
        str(sum(_is_wrong(outcome) for outcome in outcomes)),
        f"{median(ends):.1f}, {max(ends):.1f}",
    )


def _is_wrong(outcome: Outcome) -> bool:
    return not (outcome.is_same or outcome.is_next)


def conclusion_of(outcomes: Sequence[Outcome]) -> str:
    wrong = [outcome for outcome in outcomes if _is_wrong(outcome)]
    right = f"The last completed step is at the collector after {len(outcomes) - len(wrong)} of {len(outcomes)} kills."
    details = (
        f" Completed {outcome.completed}, begun {outcome.begun}, at the collector {outcome.shown} of {outcome.counted}"
        f" counted{'' if outcome.is_complete else ', not ended as lost or with lost records'}."
        for outcome in wrong
    )
    return right + "".join(details)


def markdown(rows: Sequence[Row], machine: str, conclusion: str, options: argparse.Namespace) -> str:
    command = f"python -m bench.agent.kills --kills {options.kills} --step-ms {options.step_ms:g} --seed {options.seed}"
    lines = [
        "# The last step before kill -9",
        "",
        f"{machine}. Programs are killed up to {MAX_SECONDS:g} s after their first step; `{command} --write`.",
        "The program notes each step before and after the call that completes it. The collector must have the last one",
        'noted after the call ("same step"); or the one noted before it, if the kill came in between ("one later").',
        "Every earlier step is there, too, and no record is lost.",
        "",
        *markdown_table(rows),
        "",
        conclusion,
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def _collector(folder: Path) -> Iterator[Server]:
    (folder / "collector").mkdir()
    server = servers.collector(folder / "collector")
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _program(server: Server, folder: Path, run: str, words: list[str], file: int) -> Iterator[subprocess.Popen[bytes]]:
    settings = {"AMMETER_DIR": str(folder), "AMMETER_URL": server.url, "AMMETER_RUN_ID": run}
    program = subprocess.Popen(
        [sys.executable, "-m", "bench.agent.kills.worker", *words],
        cwd=ROOT,
        env={**os.environ, **settings},
        pass_fds=[file],
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def _wait_for_first_step(program: subprocess.Popen[bytes], notes: Notes) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while notes.completed < 0:
        if program.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the program has completed no step; its error is above")
        time.sleep(POLL_SECONDS)


def _ended_run(server: Server, run: str) -> dict[str, Any]:
    """Returns the run at the collector once it has ended, or as it is after TIMEOUT_SECONDS."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        found = _run_at(server, run)
        if found.get("state") in ("lost", "ended") or time.monotonic() > deadline:
            return found
        time.sleep(POLL_SECONDS)


def _run_at(server: Server, run: str) -> dict[str, Any]:
    try:
        return dict(json.loads(server.get(f"/api/v1/runs/{run}")))
    except HTTPError as error:
        if error.code != 404:
            raise
        return {}


def wait_for_shippers(folder: Path) -> None:
    """Waits until the shippers of all runs have exited, because they need the folder."""
    deadline = time.monotonic() + SHIPPER_SECONDS
    while any(is_locked(lock) for lock in folder.glob("*/shipper.*.lock")) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(__doc__, quick="only checks that it runs: two kills")
    parser.add_argument("--kills", type=int, default=50, help="programs to kill (50)")
    parser.add_argument("--step-ms", type=float, default=2.0, help="wanted duration of a step (2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments (0)")
    options = parse_benchmark(parser, arguments)
    if options.quick:
        options.kills = len(PRECISIONS)
    return options


if __name__ == "__main__":
    sys.exit(main())
