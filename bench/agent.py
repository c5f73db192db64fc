"""What watching costs: bare and watched steps of the same GPT in alternating blocks of one process.

    python bench/agent.py [--blocks 40] [--steps 5] [--write]

Prints, and with --write keeps in bench/results/agent.md, the median of each kind, their ratio, and its spread over
pairs of neighbouring blocks. Both kinds train the same model on, so drift of the machine or of the model hits both.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

import ammeter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "trainer"))
from model import GPT, Shape  # noqa: E402 - the trainer is a program, not a library

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = {
    "bf16": Shape(vocabulary=96, context=128, layers=4, heads=4, width=320),
    "fp16": Shape(vocabulary=96, context=80, layers=4, heads=4, width=64),
}
"""Sizes for a step of 80 ms and more on two cores; few CPUs multiply float16 natively, so that model is smaller."""

BATCH = 8


@dataclass(frozen=True)
class Outcome:
    """Seconds per step, of bare and watched steps, and the ratio of each pair of neighbouring blocks.

    reading: what one reading of all norms costs, in seconds.
    """

    name: str
    bare: list[float]
    watched: list[float]
    ratios: list[float]
    reading: float

    @property
    def ratio(self) -> float:
        return median(self.watched) / median(self.bare)


def main() -> int:
    options = _options()
    console = Console()
    outcomes = []
    for precision in DTYPES:
        with console.status(f"{precision}: {options.blocks} pairs of blocks of {options.steps} steps ..."):
            outcomes.append(measure(precision, options.blocks, options.steps, SHAPES[precision]))
        console.print(_line(outcomes[-1]))
    console.print(table(outcomes))
    if options.write:
        path = ROOT / "bench" / "results" / "agent.md"
        path.parent.mkdir(exist_ok=True)
        sizes = ", ".join(f"{name}: {GPT(shape).size():,} weights" for name, shape in SHAPES.items())
        where = f"GPT ({sizes}), {torch.get_num_threads()} threads, {platform.machine()}"
        path.write_text(markdown(outcomes, where, options.blocks, options.steps, "make bench ARGS=--write"))
        console.print(f"written to {path.relative_to(ROOT)}")
    return 0


def measure(precision: str, blocks: int, steps: int, shape: Shape, device: str = "cpu") -> Outcome:
    """Alternates blocks of bare and watched steps; the first block of each kind warms up and does not count."""
    step, run, close = _training(precision, shape, device)
    bare: list[float] = []
    watched: list[float] = []
    ratios: list[float] = []
    for block in range(blocks + 1):
        kinds = ("bare", "watched") if block % 2 else ("watched", "bare")
        times = {}
        for kind in kinds:
            run(kind == "watched")
            times[kind] = [_seconds(step, device) for _ in range(steps)]
        if block:
            bare += times["bare"]
            watched += times["watched"]
            ratios.append(median(times["watched"]) / median(times["bare"]))
    return Outcome(precision, bare, watched, ratios, close())


def _training(
    precision: str, shape: Shape, device: str
) -> tuple[Callable[[], None], Callable[[bool], None], Callable[[], float]]:
    """(one step, switch watching on or off, end it and say what share of the watched time was ours)."""
    torch.manual_seed(0)
    model = GPT(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device) if precision == "fp16" else None
    folder = tempfile.TemporaryDirectory()
    handle = ammeter.watch(model, optimizer, scaler, dir=folder.name)
    session = handle._session
    assert session is not None, "nothing to measure: AMMETER_DISABLE is set"
    data = torch.randint(shape.vocabulary, (64, BATCH, shape.context + 1)).to(device)
    count = 0
    attached = True

    def step() -> None:
        nonlocal count
        batch = data[count % len(data)]
        count += 1
        with torch.autocast(device, DTYPES[precision]):
            loss = model(batch[:, :-1], batch[:, 1:])
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        if attached:
            handle.log(samples=BATCH)

    def watch(wanted: bool) -> None:
        nonlocal attached
        if wanted != attached:
            (session.subscribe if wanted else session.unsubscribe)()
            attached = wanted

    def close() -> float:
        if not attached:
            session.subscribe()
        handle.close()
        folder.cleanup()
        return session.governor.norms.cost

    return step, watch, close


def _seconds(step: Callable[[], None], device: str) -> float:
    began = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _line(outcome: Outcome) -> str:
    low, middle, high = _quartiles(outcome.ratios)
    return (
        f"{outcome.name}: bare {1000 * median(outcome.bare):.1f} ms, watched {1000 * median(outcome.watched):.1f} ms, "
        f"ratio {outcome.ratio:.4f} (pairs: {low:.4f} / {middle:.4f} / {high:.4f})"
    )


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 4], median(ordered), ordered[3 * len(ordered) // 4]


HEADINGS = ("precision", "bare ms", "watched ms", "ratio of medians", "ratio of pairs: quartiles", "slowest watched ms")


def _rows(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in outcomes:
        low, middle, high = _quartiles(each.ratios)
        spread = f"{low:.3f} / {middle:.3f} / {high:.3f}"
        bare, watched = f"{1000 * median(each.bare):.1f}", f"{1000 * median(each.watched):.1f}"
        rows.append((each.name, bare, watched, f"{each.ratio:.3f}", spread, f"{1000 * max(each.watched):.1f}"))
    return rows


def table(outcomes: list[Outcome]) -> Table:
    table = Table(*HEADINGS, title="a training step, bare and watched")
    for row in _rows(outcomes):
        table.add_row(*row)
    return table


def markdown(outcomes: list[Outcome], where: str, blocks: int, steps: int, command: str) -> str:
    """The result file: what was measured, where, by which command, and the table."""
    lines = [
        "# What watching costs",
        "",
        f"{where}, torch {torch.__version__}; {blocks} pairs of blocks of {steps} steps, "
        f"bare and watched in turn. Written by `{command}`.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(row) + " |" for row in _rows(outcomes)),
    ]
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40, help="pairs of blocks (40)")
    parser.add_argument("--steps", type=int, default=5, help="steps in a block (5)")
    parser.add_argument("--write", action="store_true", help="keep the table in bench/results/agent.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
