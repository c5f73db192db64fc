"""The checks that need a GPU, in one script: watched training has the same bits on CUDA, and what watching costs there.

    python bench/gpu.py [--blocks 40] [--steps 10]

Writes bench/results/gpu.md. Ends with 1 when the bits differ or there is no CUDA device.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]
import ammeter  # noqa: E402 - after the paths above
from bench.agent import DTYPES, markdown, measure, table  # noqa: E402 - beside this file
from model import GPT, Shape  # noqa: E402 - the trainer is a program, not a library

SHAPE = Shape(vocabulary=50304, context=1024, layers=12, heads=12, width=768)
"""The size of GPT-2 small."""

SMALL = Shape(vocabulary=96, context=64, layers=2, heads=2, width=64)
STEPS = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40, help="pairs of blocks (40)")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block (10)")
    options = parser.parse_args()
    console = Console()
    if not torch.cuda.is_available():
        console.print("no CUDA device: this script has nothing to run on; `make test` and `make bench` need none")
        return 1
    different = [name for name in DTYPES if train(name, watched=False) != train(name, watched=True)]
    console.print(f"bits differ for {different}" if different else f"{STEPS} watched steps have the bits of bare ones")
    outcomes = [measure(name, options.blocks, options.steps, SHAPE, "cuda") for name in DTYPES]
    console.print(table(outcomes))
    where = f"GPT of {GPT(SHAPE).size():,} weights, {torch.cuda.get_device_name()}"
    path = ROOT / "bench" / "results" / "gpu.md"
    path.write_text(markdown(outcomes, where, options.blocks, options.steps, "make gpu"))
    return 1 if different else 0


def train(precision: str, *, watched: bool) -> list[bytes]:
    """The bytes of every weight after some steps on the GPU."""
    torch.manual_seed(0)
    model: Any = GPT(SMALL).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda") if precision == "fp16" else None
    with tempfile.TemporaryDirectory() as folder:
        run = ammeter.watch(model, optimizer, scaler, dir=folder) if watched else None
        for _ in range(STEPS):
            batch = torch.randint(SMALL.vocabulary, (8, SMALL.context + 1)).cuda()
            with torch.autocast("cuda", DTYPES[precision]):
                loss = model(batch[:, :-1], batch[:, 1:])
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
        if run:
            run.close()
    return [weight.detach().cpu().numpy().tobytes() for weight in model.parameters()]


if __name__ == "__main__":
    sys.exit(main())
