"""Measures what Ammeter adds to the start and the end of a program.

    python -m bench.agent.start [--quick] [--write [FOLDER]]

A short training runs as a program of its own: bare, with watch(), with watch() and a collector, and unchanged under
`ammeter run`, in turn. What is added is the difference to the bare program beside it, so that what disturbs the machine
disturbs both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from bench.agent.start import program
from bench.collector import servers
from bench.common.machine import cpu_and_cores, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.tables import Row, markdown_table

LIMIT_MS = 150
"""Most that import, watch(), the first step and close() may add together."""

PARTS = ("import", "watch", "first step", "close")

BARE, WATCHED, SENT, LAUNCHED = "bare", "watch()", "watch(url=...)", "ammeter run"

Parts = dict[str, float]
"""Seconds by part. `program`: from its start to its end; `cpu`: CPU time of it and of children it waited for."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, quick="two turns, to check that everything runs")
    options = parse_benchmark(parser, arguments)
    drop_settings()
    load = os.getloadavg()[0]
    lines = report(measure(2 if options.quick else 15), load)
    print("\n".join(lines))
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "start.md").write_text("\n".join(lines) + "\n")
    return 0


def measure(turns: int) -> dict[str, list[Parts]]:
    """Returns the parts of each program in each turn. A turn before them, which is not counted, fills the caches."""
    found: dict[str, list[Parts]] = {kind: [] for kind in (BARE, WATCHED, SENT, LAUNCHED)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ammeter-bench-")))
        server = servers.collector(folder / "collector")
        stack.callback(server.stop)
        for turn in range(turns + 1):
            for kind, results in found.items():
                parts = _run(kind, folder, server.url)
                results += [parts] if turn else []
    return found


def _run(kind: str, folder: Path, url: str) -> Parts:
    file = folder / "parts.json"
    path = [str(Path(program.__file__)), str(file)]
    words = {
        BARE: path,
        WATCHED: [*path, "--watch"],
        SENT: [*path, "--watch", "--url", url],
        LAUNCHED: ["-m", "ammeter", "run", *path],
    }[kind]
    environment = {**os.environ, "AMMETER_DIR": str(folder / "runs"), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begin, os.times()
    if done.returncode:
        raise RuntimeError(f"the program under {kind} ended with {done.returncode}: {done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    parts: Parts = json.loads(file.read_text())
    return {**parts, "program": seconds, "cpu": cpu}


def added(found: dict[str, list[Parts]], kind: str, part: str) -> list[float]:
    """Milliseconds that a part takes longer than in the bare program of the same turn."""
    return [1e3 * (with_[part] - bare[part]) for with_, bare in zip(found[kind], found[BARE], strict=True)]


def report(found: dict[str, list[Parts]], load: float) -> list[str]:
    turns = len(found[BARE])
    rows: list[Row] = [("ms more than bare", *PARTS, "together", "whole program", "its CPU time")]
    together = {}
    for kind in (WATCHED, SENT, LAUNCHED):
        by_part = [added(found, kind, part) for part in PARTS]
        together[kind] = [sum(parts) for parts in zip(*by_part, strict=True)]
        inside = [_cell(values) for values in (*by_part, together[kind])] if kind != LAUNCHED else ["–"] * 5
        rows.append((kind, *inside, _cell(added(found, kind, "program")), _cell(added(found, kind, "cpu"))))
    programs = [1e3 * parts["program"] for parts in found[BARE]]
    differences = [one - other for one, other in zip(programs[1:], programs, strict=False)]
    bare = f"The bare program takes {np.median(programs):,.0f} ms, and from one turn to the next"
    sum_ms = float(np.median(together[WATCHED]))
    return [
        "# What Ammeter adds to the start and the end of a program",
        "",
        f"{cpu_and_cores()}, torch {torch.__version__}; load before: {load:.1f}; `python -m bench.agent.start`.",
        "",
        f"A GPT of {program.SHAPE.layers} layers trains for {program.STEPS + 3} steps, {turns} times in each way."
        " Python's bytecode is cached. Median, and in brackets the lowest and the highest. The first step is longer by"
        " its readings. The whole program includes the further steps, what the process that sends the journal takes of"
        " the cores, and the delivery at the end.",
        "",
        *markdown_table(rows),
        "",
        f"{bare} {_cell(differences)} more.",
        "",
        f"- import, watch(), first step and close together, at most {LIMIT_MS} ms:"
        f" {sum_ms:.0f} ms: {'met' if sum_ms <= LIMIT_MS else 'missed'}",
    ]


def _cell(values: Sequence[float]) -> str:
    return f"{np.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" if values else "–"


if __name__ == "__main__":
    sys.exit(main())
