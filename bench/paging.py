"""How long from the overflow in the training process to a person: seconds until a real HTTP receiver was told.

    python bench/paging.py [--runs 30] [--write]

A collector in its default set-up, a receiver, and runs whose loss turns NaN at a step of its own. The clock starts when
the optimizer's step with the NaN is over; page, journal, shipper, collector, judge, outbox and channel are in between.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import torch

import ammeter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.e2e.real import Collector, Receiver, wait_for  # noqa: E402 - the same real parts as in the tests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="runs that break (30)")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results/paging.md")
    options = parser.parse_args()
    seconds = measure(options.runs)
    p95 = quantiles(seconds, n=20)[-1]
    line = f"{options.runs} pages: median {median(seconds):.2f} s, p95 {p95:.2f} s, slowest {max(seconds):.2f} s"
    print(line)
    if options.write:
        path = ROOT / "bench" / "results" / "paging.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# From the overflow to the page\n\n{line}. Written by `python bench/paging.py --write`.\n")
    return 0


def measure(runs: int) -> list[float]:
    """Seconds of each run from the end of the broken step to the arrival of its page."""
    chance = random.Random(0)
    receiver = Receiver()
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(Path(folder), "--notify", receiver.apprise).start()
        try:
            return [_one(collector, receiver, Path(folder), chance.randrange(5, 60)) for _ in range(runs)]
        finally:
            collector.stop()
            receiver.stop()


def _one(collector: Collector, receiver: Receiver, folder: Path, broken: int) -> float:
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = ammeter.watch(model, optimizer, scaler, url=collector.url, dir=folder / "journals")
    overflow = 0.0
    for step in range(broken + 40):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).square().mean() * (float("nan") if step >= broken else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        overflow = overflow or (time.time() if step == broken else 0.0)
        time.sleep(0.02)
    arrived = wait_for(lambda: [at for at, told in receiver.received if run.id in told["message"]], "the page arrived")
    run.close()
    print(f"{arrived[0] - overflow:.2f} s", flush=True)
    return float(arrived[0] - overflow)


if __name__ == "__main__":
    sys.exit(main())
