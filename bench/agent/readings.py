"""Measures in which share of the steps the gradient norms are read, alone and beside processes that use all cores.

    python -m bench.agent.readings [--quick] [--write]

Trains a small GPT at the default budget, with as many micro-batches as a step of the wanted CPU time takes. The promise
is that norms of steps of 20 ms or longer are read as often as the budget allows, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import os
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
from ammeter.journal.find import streams_in, views
from ammeter.recording.schedule.budget import MAX_GUARANTEED_INTERVAL
from ammeter.wire import columns
from ammeter.wire.columns import measured
from bench.common.machine import cpu_model, drop_settings
from bench.common.paths import RESULTS
from bench.common.tables import Row, markdown_table, terminal_table
from bench.common.trainer import GPT, Shape

SHAPE = Shape(vocabulary=96, context=32, layers=4, heads=4, width=64)
STEP_MS = (25, 80)
SETTLING_STEPS = 100
"""First steps, which have more readings, are not counted."""

BURNER = "while True: sum(range(10**6))"

HEADINGS = ("step ms", "started beside it", "steps", "norms read", "longest gap", "pairs per 100 steps", "overhead")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 1 if norms were read less often than in every 32nd step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--write", action="store_true", help="replace the result file")
    options = parser.parse_args(arguments)
    if options.quick and options.write:
        parser.error("--quick measures too little for bench/results; leave out --write")
    drop_settings()
    rows: list[Row] = [HEADINGS]
    longest, load = 0, os.getloadavg()[0]
    for step_ms in STEP_MS:
        for burners in (0, os.cpu_count() or 1):
            row, gap = _measure(step_ms, burners, 100 if options.quick else 400)
            rows.append(row)
            longest = max(longest, gap)
    title = f"{cpu_model()}, {os.cpu_count()} cores, torch {torch.__version__}, load before: {load:.1f}"
    Console().print(terminal_table(rows, title))
    if options.write:
        (RESULTS / "readings.md").write_text("\n".join([*_INTRODUCTION, "", title, "", *markdown_table(rows), ""]))
    return int(longest > MAX_GUARANTEED_INTERVAL)


def _measure(step_ms: int, burners: int, steps: int) -> tuple[Row, int]:
    """Returns the row of one measurement, and the largest distance of two readings in steps."""
    with tempfile.TemporaryDirectory(prefix="ammeter-readings-") as folder, _burning(burners):
        run = _train(Path(folder), step_ms, SETTLING_STEPS + steps)
        (stream,) = streams_in(Path(folder) / run)
        parts = [view for view in views(stream) if len(view)]
    rows = columns.join(parts[-1].schema, [part for part in parts if part.schema.id == parts[-1].schema.id])
    late = rows.steps >= SETTLING_STEPS
    read = rows.steps[late & measured(rows.scalar("grad_norm"))]
    seconds, overhead = (rows.scalar(name)[late] for name in ("step_seconds", "overhead_seconds"))
    gaps = np.diff(read)
    row = (
        f"{1000 * float(np.median(seconds)):.0f}",
        f"{burners} busy processes" if burners else "none",
        str(int(late.sum())),
        f"{100 * len(read) / late.sum():.0f} %",
        str(int(gaps.max(initial=0))),
        f"{100 * float((gaps == 1).sum()) / late.sum():.0f}",
        f"{100 * float(overhead.sum() / seconds.sum()):.2f} %",
    )
    return row, int(gaps.max(initial=0))


def _train(folder: Path, step_ms: int, steps: int) -> str:
    """Trains so many steps of this duration. Returns the id of the run."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(SHAPE.vocabulary, (16, 8, SHAPE.context + 1))

    def step(micro_batches: int) -> float:
        began = time.process_time()  # wall time depends on other programs
        for batch in data[:micro_batches]:
            (model(batch[:, :-1], batch[:, 1:]) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - began

    micro_batch_seconds = min(step(1) for _ in range(10))
    micro_batches = min(len(data), max(1, round(step_ms / 1000 / micro_batch_seconds)))
    run = ammeter.watch(model, optimizer, dir=folder)
    for _ in range(steps):
        step(micro_batches)
    run.close()
    return run.id


@contextmanager
def _burning(count: int) -> Iterator[None]:
    """Runs processes that use one core each."""
    burners = [subprocess.Popen([sys.executable, "-c", BURNER]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


_INTRODUCTION = (
    "# How many steps are read",
    "",
    "A small GPT at the default budget of 1 %, without the first 100 steps; `python -m bench.agent.readings --write`.",
    "A gap is the distance of two readings of the gradient norms in steps: 2 means that every second step is read.",
    f"The steps need {' and '.join(map(str, STEP_MS))} ms of CPU time. Their duration and the overhead are wall time, "
    "which includes waits for a core.",
)

if __name__ == "__main__":
    raise SystemExit(main())
