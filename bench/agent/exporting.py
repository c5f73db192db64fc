"""Measures whether the step of a run becomes longer while the run is exported.

    python -m bench.agent.exporting [--blocks 12] [--write]

Steps of one watched GPT in alternating blocks: with no other process, beside exports of this run one after the other,
and beside a process that only computes. The last two use one core of the machine each, so their difference is what the
export itself adds.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import ammeter
from bench.common.machine import cpu_and_cores, drop_settings
from bench.common.paths import RESULTS
from bench.common.tables import Row, markdown_table, terminal_table
from bench.common.trainer import GPT, Shape

SHAPE = Shape(vocabulary=96, context=32, layers=2, heads=4, width=64)
BATCH_SIZE = 4
BLOCK_STEPS = 150
FIRST_STEPS = 2_000
"""Steps before the measurement, so that an export has something to read."""

MODES = ("no other process", "beside a process that computes", "beside exports")

COMPUTING = "while True: pass"
EXPORTING = """
import itertools, subprocess, sys
run, target = sys.argv[1:]
for number in itertools.count():
    for kind in ("csv", "parquet", "tensorboard"):
        arguments = ["export", run, "--to", kind, f"{target}-{number}.{kind}"]
        done = subprocess.run([sys.executable, "-m", "ammeter", *arguments])
        print("exported" if done.returncode == 0 else "failed", flush=True)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    drop_settings()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="ammeter-exporting-") as place, console.status("measuring ..."):
        seconds, exports = measure(Path(place), options.blocks)
    machine = f"{cpu_and_cores()}, torch {torch.__version__}, Python {platform.python_version()}"
    rows = table(seconds)
    console.print(terminal_table(rows, f"{machine}; {exports} exports"))
    if options.write:
        (RESULTS / "exporting.md").write_text(markdown(rows, machine, exports, options.blocks))
    return 0


def measure(place: Path, blocks: int) -> tuple[dict[str, list[list[float]]], int]:
    """Returns the seconds of the steps in each block by mode, and the number of exports that ended meanwhile."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(SHAPE.vocabulary, (64, BATCH_SIZE, SHAPE.context + 1))
    run = ammeter.watch(model, optimizer, dir=place / "runs")

    def steps(count: int) -> list[float]:
        seconds = []
        for number in range(count):
            began = time.perf_counter()
            batch = data[number % len(data)]
            model(batch[:, :-1], batch[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)
        return seconds

    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    exports = 0
    steps(FIRST_STEPS)
    for number in range(blocks):
        for mode in MODES[number % 3 :] + MODES[: number % 3]:
            with _beside(mode, place / "runs" / run.id, place / f"exported-{number}") as output:
                found[mode].append(steps(BLOCK_STEPS))
                exports += _ended(output)
    run.close()
    return found, exports


@contextmanager
def _beside(mode: str, run: Path, target: Path) -> Iterator[Path | None]:
    """Starts the other process of a mode, and ends it."""
    if mode == MODES[0]:
        yield None
        return
    output = target.with_name("output.txt")
    command = [COMPUTING] if mode == MODES[1] else [EXPORTING, str(run), str(target)]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", *command], stdout=file, stderr=file, start_new_session=True, env=os.environ
        )
        try:
            time.sleep(0.5)  # until it runs
            yield output if mode == MODES[2] else None
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def _ended(output: Path | None) -> int:
    if output is None:
        return 0
    lines = output.read_text().splitlines()
    assert "failed" not in lines, output.read_text()
    return lines.count("exported")


def table(found: dict[str, list[list[float]]]) -> list[Row]:
    """A row per mode; ratios are medians over the blocks, with their range."""
    rows: list[Row] = [("steps", "median ms", "ratio to no other process", "ratio to a process that computes")]
    medians = {mode: np.array([np.median(block) for block in blocks]) for mode, blocks in found.items()}
    for mode in MODES:
        ratios = [medians[mode] / medians[other] for other in MODES[:2]]
        cells = [f"{np.median(ratio):.3f} ({ratio.min():.2f} to {ratio.max():.2f})" for ratio in ratios]
        rows.append((mode, f"{1e3 * np.median(medians[mode]):.2f}", *cells))
    return rows


def markdown(rows: Sequence[Row], machine: str, exports: int, blocks: int) -> str:
    lines = [
        "# What an export adds to the step",
        "",
        f"{machine}. {blocks} blocks of {BLOCK_STEPS} steps in each mode in turn; {exports} exports to CSV, Parquet or",
        "TensorBoard ended meanwhile. Written by `python -m bench.agent.exporting --write`.",
        "",
        *markdown_table(rows),
    ]
    return "\n".join(lines) + "\n"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12, metavar="N", help="blocks in each mode (12)")
    parser.add_argument("--write", action="store_true", help="replace bench/results/exporting.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
