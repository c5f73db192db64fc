"""What reading all gradients costs against moving their memory once, and against their norms alone by torch.

    python -m bench.stats [--cuda] [--write]

On the CPU: 50 tensors of 100,000 elements, out of the caches, and 50 of 1,000. With --cuda: 300 tensors, 1 GB, against
a copy on the device; before that, whether the kernels give the numbers of torch's operators and wait for nothing. Ends
with 1 where they do not. --write keeps the table in bench/results/stats.md or stats-cuda.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ammeter.tensors import available, cpu, native
from ammeter.tensors.cuda import KINDS, Device, rows
from bench.common.paths import RESULTS

HEADINGS = ("what", "gradients", "microseconds", "GB/s", "times memory once")
REPEATS = 25
CACHES = 64 * 2**20
"""Bytes that are written between two readings on the CPU."""


@dataclass(frozen=True)
class Timed:
    """One way of reading. moved: bytes read and written. once: GB/s of reading memory and doing nothing with it."""

    what: str
    gradients: str
    seconds: float
    moved: int
    once: float

    @property
    def row(self) -> tuple[str, ...]:
        rate = self.moved / self.seconds / 1e9
        return self.what, self.gradients, f"{self.seconds * 1e6:.1f}", f"{rate:.1f}", f"{self.once / rate:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    parser.add_argument("--write", action="store_true", help="keep the table in bench/results")
    options = parser.parse_args()
    console = Console()
    if options.cuda and not torch.cuda.is_available():
        console.print("no CUDA device: leave out --cuda to measure on the CPU")
        return 1
    wrong = check_on_cuda() if options.cuda else []
    for each in wrong:
        console.print(each)
    timed = on_cuda() if options.cuda else on_cpu()
    console.print(table(timed))
    if options.write:
        name = "stats-cuda.md" if options.cuda else "stats.md"
        (RESULTS / name).write_text(markdown(timed, options.cuda))
    return bool(wrong)


def on_cpu() -> list[Timed]:
    torch.set_num_threads(1)
    timed = []
    for dtype in (*KINDS, torch.float64):
        gradients = some(50, 100_000, dtype, "cpu")
        timed += ways_on_cpu(gradients, f"50 x 100,000 {str(dtype).removeprefix('torch.')}", cold=True)
    return timed + ways_on_cpu(some(50, 1_000, torch.float32, "cpu"), "50 x 1,000 float32, cached", cold=False)


def ways_on_cpu(gradients: list[torch.Tensor], what: str, *, cold: bool) -> list[Timed]:
    words, reader = [each.view(torch.int64) for each in gradients], native.Reader()
    size = sum(each.nbytes for each in gradients)
    ways: dict[str, Callable[[], object]] = {
        "memory once: torch.sum of each as int64": lambda: [each.sum() for each in words],
        "ammeter, everything": lambda: reader.read(gradients),
        "ammeter, norms": lambda: reader.norms(gradients),
        "torch._foreach_norm": lambda: torch._foreach_norm(gradients, 2),
        "ammeter without a compiler": lambda: cpu.read(gradients),
    }
    seconds = {name: timed_on_cpu(read, cold=cold) for name, read in ways.items()}
    once = size / next(iter(seconds.values())) / 1e9
    return [Timed(name, what, each, size, once) for name, each in seconds.items()]


def timed_on_cpu(read: Callable[[], object], *, cold: bool) -> float:
    """Median seconds. cold: out of the caches."""
    elsewhere = torch.zeros(CACHES // 4)
    taken = []
    for _ in range(REPEATS if cold else 10 * REPEATS):
        if cold:
            elsewhere.add_(1)
        began = time.perf_counter()
        read()
        taken.append(time.perf_counter() - began)
    return median(taken)


def on_cuda() -> list[Timed]:
    timed = []
    for dtype in KINDS:
        gradients = some(300, 2**30 // dtype.itemsize // 300, dtype, "cuda")
        timed += ways_on_cuda(gradients, f"300, 1 GB of {str(dtype).removeprefix('torch.')}")
    return timed


def ways_on_cuda(gradients: list[torch.Tensor], what: str) -> list[Timed]:
    size = sum(each.nbytes for each in gradients)
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    target, reader = torch.empty_like(source), Device()
    copied = timed_on_cuda(lambda: target.copy_(source))
    once = 2 * size / copied / 1e9
    ways: dict[str, Callable[[], object]] = {
        "ammeter, everything": lambda: reader.read(gradients),
        "ammeter, everything and the spectrum": lambda: reader.read_with_spectrum(gradients),
        "torch._foreach_norm": lambda: torch._foreach_norm(gradients, 2),
    }
    first = Timed("memory once: copy on the device", what, copied, 2 * size, once)
    return [first, *(Timed(name, what, timed_on_cuda(read), size, once) for name, read in ways.items())]


def timed_on_cuda(read: Callable[[], object]) -> float:
    """Median seconds on the device."""
    for _ in range(3):
        read()
    taken = []
    for _ in range(REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        read()
        ended.record()
        ended.synchronize()
        taken.append(float(began.elapsed_time(ended)) / 1e3)
    return median(taken)


def check_on_cuda() -> list[str]:
    """What is wrong: with the numbers, or because a reading waited for the device."""
    wrong = []
    for dtype in KINDS:
        random = torch.randint(0, 256, (3_000_001 * dtype.itemsize,), dtype=torch.uint8, device="cuda").view(dtype)
        gradients = [random, random[1:77], random[16:], *some(20, 5_000, dtype, "cuda"), random[:0]]
        reader = Device()
        reader.read(gradients)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            read = reader.read(gradients)
        except RuntimeError as error:
            wrong.append(f"{dtype}: a reading waits for the device: {error}")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if reader.slow:
            wrong.append(f"{dtype}: the kernels do not run: {reader.slow}")
            continue
        found, expected = read.cpu().numpy(), rows(gradients).cpu().numpy()
        if not (
            np.array_equal(found[:, 1:], expected[:, 1:])
            and np.allclose(found[:, 0], expected[:, 0], rtol=1e-12, atol=0, equal_nan=True)
        ):
            wrong.append(f"{dtype}: the kernels and torch's operators disagree by {np.abs(found - expected).max(0)}")
    return wrong


def some(number: int, size: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Gradients of ordinary size that differ from one another."""
    torch.manual_seed(0)
    return [(torch.randn(size, device=device) * 10.0 ** (-2 - at % 5)).to(dtype) for at in range(number)]


def table(timed: list[Timed]) -> Table:
    shown = Table(*HEADINGS)
    for each in timed:
        shown.add_row(*each.row)
    return shown


def markdown(timed: list[Timed], cuda: bool) -> str:
    where = torch.cuda.get_device_name() if cuda else f"1 thread, {platform.machine()}"
    by = available()["cuda" if cuda else "cpu"]
    lines = [
        "# What reading all gradients costs",
        "",
        f"{where}, torch {torch.__version__}, {by}; medians. Written by "
        f"`python -m bench.stats {'--cuda ' if cuda else ''}--write`.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(each.row) + " |" for each in timed),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
