"""A short training that notes how long each part of its start and end takes.

    program.py FILE [--watch] [--url URL]

Writes the seconds of each part as JSON. The parts of Ammeter are 0 without --watch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "trainer"))
from model import GPT, Shape

SHAPE = Shape(vocabulary=96, context=64, layers=4, heads=4, width=64)
BATCH_SIZE = 8
STEPS = 5


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    model, scaler = GPT(SHAPE), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(SHAPE.vocabulary, (BATCH_SIZE, SHAPE.context + 1))

    def step() -> float:
        begin = perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return perf_counter() - begin

    for _ in range(2):  # torch's own first steps
        step()
    parts, run = {"import": 0.0, "watch": 0.0}, None
    if options.watch:
        parts["import"], parts["watch"], run = _watched(model, optimizer, scaler, options.url)
    parts["first step"] = step()
    parts["next steps"] = sum(step() for _ in range(STEPS))
    begin = perf_counter()
    if run is not None:
        run.close()
    parts["close"] = perf_counter() - begin
    options.file.write_text(json.dumps(parts))


def _watched(model: Any, optimizer: Any, scaler: Any, url: str | None) -> tuple[float, float, Any]:
    begin = perf_counter()
    import ammeter

    imported = perf_counter()
    run = ammeter.watch(model, optimizer, scaler, url=url)
    return imported - begin, perf_counter() - imported, run


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--url")
    return parser.parse_args()


if __name__ == "__main__":
    main()
