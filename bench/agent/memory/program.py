"""A training that notes its memory, and what forks and the workers of a DataLoader take.

    program.py FILE --layers N --steps N [--watch]

Writes JSON: bytes of resident memory after warm-up and at the end, and seconds of a fork and of a loaded batch.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.utils.data import DataLoader, Dataset

WIDTH = 16
WARMUP_STEPS = 200
FORKS = 20
BATCHES = 200


class Rows(Dataset[torch.Tensor]):
    """Data whose items are computed, as an image that is decoded."""

    def __len__(self) -> int:
        return 8 * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64, 64), float(index)).sin().cumsum(0)


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(options.layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch, run = torch.randn(8, WIDTH), None

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    steps(3)
    if options.watch:
        import ammeter

        run = ammeter.watch(model, optimizer)
    steps(WARMUP_STEPS)
    noted: dict[str, float] = {"begin": _resident_bytes()}
    steps(options.steps)
    noted["end"] = _resident_bytes()
    noted["fork"] = median(_fork() for _ in range(FORKS))
    noted["batch"] = _loading() / BATCHES
    if run is not None:
        run.close()
    options.file.write_text(json.dumps(noted))


def _resident_bytes() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _fork() -> float:
    """Seconds from a fork until its child, which does nothing, has ended."""
    begin = perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return perf_counter() - begin


def _loading() -> float:
    """Seconds in which two workers load all batches."""
    loader = DataLoader(Rows(), batch_size=8, num_workers=2)
    begin = perf_counter()
    for _ in loader:
        pass
    return perf_counter() - begin


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--watch", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
