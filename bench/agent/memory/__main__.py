"""Measures the memory that Ammeter holds for each parameter and each step, and what forks and loaders pay.

    python -m bench.agent.memory [--quick] [--write [FOLDER]]

The same program runs bare and watched, with few and with many parameters, in turn. It needs Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench.agent.memory import program
from bench.common.machine import cpu_and_cores, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.tables import Row, markdown_table

FEW_LAYERS, MANY_LAYERS = 4, 256
"""Two parameters each."""

FEW_STEPS, MANY_STEPS = 8_000, 60
"""Steps of the program with few and with many layers."""

Noted = dict[str, float]

Found = dict[tuple[int, bool], list[Noted]]
"""(layers, watched) -> what the program noted in each turn."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, quick="one turn of few steps, to check that everything runs")
    options = parse_benchmark(parser, arguments)
    drop_settings()
    load = os.getloadavg()[0]
    lines = report(measure(1, 0.02) if options.quick else measure(7), load)
    print("\n".join(lines))
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "memory.md").write_text("\n".join(lines) + "\n")
    return 0


def measure(turns: int, share: float = 1.0) -> Found:
    """Runs all programs in turn. share: of the steps that the committed result has."""
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="ammeter-bench-") as folder:
        for _ in range(turns):
            for layers, steps in ((FEW_LAYERS, FEW_STEPS), (MANY_LAYERS, MANY_STEPS)):
                for is_watched in (False, True):
                    noted = _run(Path(folder), layers, round(steps * share), is_watched)
                    found.setdefault((layers, is_watched), []).append(noted)
    return found


def _run(folder: Path, layers: int, steps: int, is_watched: bool) -> Noted:
    file = folder / "noted.json"
    words = [str(file), "--layers", str(layers), "--steps", str(steps), *(["--watch"] if is_watched else [])]
    environment = os.environ | {"AMMETER_DIR": str(folder / "runs")}
    done = subprocess.run(
        [sys.executable, str(Path(program.__file__)), *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the program with {layers} layers ended with {done.returncode}: {done.stderr[-2000:]}")
    noted: Noted = json.loads(file.read_text())
    return {**noted, "steps": steps}


def added(found: Found, layers: int, name: str) -> list[float]:
    """What a figure of the watched program is more than that of the bare one of the same turn."""
    return [watched[name] - bare[name] for watched, bare in zip(found[layers, True], found[layers, False], strict=True)]


def ratios(found: Found, layers: int, name: str) -> list[float]:
    return [watched[name] / bare[name] for watched, bare in zip(found[layers, True], found[layers, False], strict=True)]


def growth(found: Found, is_watched: bool) -> list[float]:
    """Bytes per step by which the program of many steps grows after its warm-up."""
    return [(noted["end"] - noted["begin"]) / max(noted["steps"], 1) for noted in found[FEW_LAYERS, is_watched]]


def report(found: Found, load: float) -> list[str]:
    turns = len(found[FEW_LAYERS, True])
    few, many = added(found, FEW_LAYERS, "end"), added(found, MANY_LAYERS, "end")
    parameters = 2 * (MANY_LAYERS - FEW_LAYERS)
    per_parameter = [(more - less) / parameters / 1024 for less, more in zip(few, many, strict=True)]
    rows: list[Row] = [
        ("what", "median (lowest to highest)"),
        (f"MiB for a program of {2 * FEW_LAYERS} parameters", _cell([value / 2**20 for value in few])),
        (f"MiB for a program of {2 * MANY_LAYERS} parameters", _cell([value / 2**20 for value in many])),
        ("KiB for each further parameter", _cell(per_parameter)),
        ("bytes by which a watched program grows in a step", _cell(growth(found, is_watched=True))),
        ("bytes by which the bare program grows in a step", _cell(growth(found, is_watched=False))),
        ("time of a fork, bare = 1", _cell(ratios(found, FEW_LAYERS, "fork"), 3)),
        ("time of a batch of two DataLoader workers, bare = 1", _cell(ratios(found, FEW_LAYERS, "batch"), 3)),
    ]
    steps = int(found[FEW_LAYERS, True][0]["steps"])
    return [
        "# Memory that Ammeter holds in a training process",
        "",
        f"{cpu_and_cores()}, torch {torch.__version__}; load before: {load:.1f}; `python -m bench.agent.memory`.",
        "",
        f"Resident memory of a watched program beside the same program without Ammeter, {turns} times in turn, at the"
        f" default preset. The first two rows include Ammeter's own modules and buffers. Growth is that of {steps:,}"
        f" steps after {program.WARMUP_STEPS}. A forked child, such as a worker of a DataLoader, is not watched.",
        "",
        *markdown_table(rows),
    ]


def _cell(values: Sequence[float], digits: int = 1) -> str:
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    sys.exit(main())
