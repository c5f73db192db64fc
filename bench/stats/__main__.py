"""Measures reading all gradients, compared with one pass over their memory and with torch's norms.

    python -m bench.stats [--cuda] [--quick] [--write]

On the CPU: 50 tensors of 100,000 elements outside the caches, and 50 of 1,000. With --cuda: 300 tensors, 1 GB, compared
with a copy on the device, after a check that the kernels agree with torch's operators and never synchronise; exits with
1 if they do not. --quick reads one small set of tensors. --write puts the table into bench/results/stats.md or
stats-cuda.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence

import torch
from rich.console import Console

from ammeter.tensors import available
from bench.common.paths import RESULTS
from bench.common.tables import markdown_table, terminal_table
from bench.stats import cpu, cuda
from bench.stats.timing import HEADINGS, Timing, gradients


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console()
    if options.cuda and not torch.cuda.is_available():
        console.print("no CUDA device: leave out --cuda to measure on the CPU")
        return 1
    if options.quick:
        torch.set_num_threads(1)
        timings = cpu.time_ways(gradients(50, 1_000, torch.float32), "50 x 1,000 float32, cached", cold=False)
        console.print(terminal_table(rows_of(timings)))
        return 0
    errors = cuda.check() if options.cuda else []
    for error in errors:
        console.print(error)
    timings = cuda.time_all() if options.cuda else cpu.time_all()
    console.print(terminal_table(rows_of(timings)))
    if options.write:
        name = "stats-cuda.md" if options.cuda else "stats.md"
        (RESULTS / name).write_text(markdown(timings, options.cuda))
    return bool(errors)


def rows_of(timings: Sequence[Timing]) -> list[tuple[str, ...]]:
    return [HEADINGS, *(timing.row for timing in timings)]


def markdown(timings: Sequence[Timing], cuda: bool) -> str:
    machine = torch.cuda.get_device_name() if cuda else f"1 thread, {platform.machine()}"
    method = available()["cuda" if cuda else "cpu"]
    lines = [
        "# The cost of reading all gradients",
        "",
        f"{machine}, torch {torch.__version__}, {method}; medians. Written by "
        f"`python -m bench.stats {'--cuda ' if cuda else ''}--write`.",
        "",
        *markdown_table(rows_of(timings)),
    ]
    return "\n".join(lines) + "\n"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    parser.add_argument("--quick", action="store_true", help="only checks that it runs on the CPU, in seconds")
    parser.add_argument("--write", action="store_true", help="write the table to bench/results")
    options = parser.parse_args(arguments)
    if options.quick and (options.cuda or options.write):
        parser.error("--quick measures too little to keep, and only on the CPU; leave out --cuda and --write")
    return options


if __name__ == "__main__":
    sys.exit(main())
