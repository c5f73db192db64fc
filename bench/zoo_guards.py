"""What guards are worth on real faults: the trainer breaks on purpose, bare and guarded, and runs as it should.

    python bench/zoo_guards.py [--steps 120] [--seeds 1] [--write]

Each line is four trainings of the same seed: with the fault, with the fault and the guard, healthy, and healthy with
the guard, which must do nothing there. A run that was stopped goes on from the checkpoint that it was sent to.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import math
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]
import torch  # noqa: E402 - the trainer is a program, not a library

import ammeter  # noqa: E402
import checkpoint  # noqa: E402
import train  # noqa: E402
from ammeter import journal  # noqa: E402
from ammeter.wire import Event  # noqa: E402
from faults import REGISTRY  # noqa: E402
from options import read_options  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "guards.md"
WITHIN = 0.02
"""A run counts as rescued when its validation loss is at most this share above that of the healthy run."""


@dataclass(frozen=True)
class Case:
    """guards: as --guard has them. fault: NAME@STEP. resumes: what is compared is the run that goes on from the
    checkpoint; bare it goes on from the program's own. wide: the fault changes the network, which is healthy in a
    precision with the range for it; it is compared with that."""

    guards: tuple[str, ...]
    fault: str
    arch: str = "gpt"
    resumes: bool = False
    wide: bool = False


CASES = (
    Case(("scale",), "overflow-storm"),
    Case(("scale",), "overflow-storm", "cnn"),
    Case(("scale",), "scale-underflowed@40"),
    Case(("scale",), "scheduler-ahead@40"),
    Case(("scale",), "scaler-rebuilt@40"),
    Case(("precision",), "activation-overflow@20", wide=True),
    Case(("checkpoint",), "nonfinite-weights@40", resumes=True),
    Case(("stop", "checkpoint"), "nonfinite-weights@40", resumes=True),
    Case(("stop", "checkpoint"), "scale-underflowed@40", resumes=True),
)


@dataclass(frozen=True)
class Training:
    """What is trained, apart from faults and guards."""

    arch: str
    steps: int
    seed: int

    def arguments(self, path: Path) -> list[str]:
        """For the trainer, which keeps the run in this file."""
        sizes = f"--tiny --arch {self.arch} --steps {self.steps} --seed {self.seed}".split()
        return [*sizes, "--checkpoint", str(path), "--checkpoint-every", "25"]


@dataclass
class Run:
    """What became of one: its validation loss, what guards did, and by what it was stopped."""

    loss: float = math.nan
    told: tuple[dict[str, Any], ...] = ()
    stopped: ammeter.Stopped | None = None
    latest: Path | None = None

    def actions(self) -> list[dict[str, Any]]:
        """All but the checkpoints that were written in peace."""
        return [each for each in self.told if each["action"] != "wrote"]


@dataclass(frozen=True)
class Line:
    """Losses; whether the guard did nothing to the healthy run, to the last bit; and what the guarded run was."""

    case: Case
    bare: float
    guarded: float
    healthy: float
    left_alone: bool
    run: Run

    @property
    def rescued(self) -> bool:
        return self.guarded <= (1 + WITHIN) * self.healthy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="of each run (120)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (1)")
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    lines = []
    for case in CASES:
        lines.append(
            mean_of([measure(case, Training(case.arch, options.steps, seed)) for seed in range(options.seeds)])
        )
        print(
            f"{'+'.join(case.guards)} {case.arch} {case.fault}: {'rescued' if lines[-1].rescued else 'lost'}",
            flush=True,
        )
    text = table(lines, options.steps, options.seeds)
    print(text)
    if options.write:
        RESULTS.write_text(text)
    return 0 if all(line.rescued and line.left_alone for line in lines) else 1


def mean_of(lines: list[Line]) -> Line:
    """Losses of several seeds; what the guard did is told of the first one."""
    bare, guarded, healthy = (mean(getattr(line, name) for line in lines) for name in ("bare", "guarded", "healthy"))
    return Line(lines[0].case, bare, guarded, healthy, all(each.left_alone for each in lines), lines[0].run)


def measure(case: Case, training: Training) -> Line:
    """All runs of one case and seed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        healthy, idle = healthy_run(training), healthy_run(training, case.guards)
        reference = run(training, folder / "wide", (), case.fault, "bf16") if case.wide else healthy
        bare = run(training, folder / "bare", fault=case.fault)
        guarded = run(training, folder / "guarded", case.guards, case.fault)
        losses = bare.loss, guarded.loss
        if case.resumes:
            own = go_on(training, folder / "bare" / "own.pt")
            losses = own, go_on(training, converted(training, guarded, folder))
    left_alone = not idle.actions() and idle.loss == healthy.loss
    return Line(case, *losses, reference.loss, left_alone, guarded)


def run(
    training: Training, folder: Path, guards: tuple[str, ...] = (), fault: str = "", precision: str = "fp16"
) -> Run:
    """One training in this process, watched, its journal below the folder."""
    if precision != "fp16":
        name = fault.partition("@")[0]
        REGISTRY[name] = replace(REGISTRY[name], precisions=("fp16", precision))
    asked = [*training.arguments(folder / "own.pt"), "--precision", precision]
    asked += [word for guard in guards for word in ("--guard", guard)] + (["--fault", fault] if fault else [])
    done = Run()
    try:
        done.loss = trained(asked, folder)
    except ammeter.Stopped as stopped:
        done.stopped = stopped
    done.told = tuple(each.data for each in told(folder / "journals"))
    written = [each["to"] for each in done.told if each["action"] == "wrote"]
    done.latest = Path(written[-1]) if written else None
    return done


@functools.cache
def healthy_run(training: Training, guards: tuple[str, ...] = ()) -> Run:
    with tempfile.TemporaryDirectory() as name:
        return run(training, Path(name), guards)


def trained(arguments: list[str], folder: Path) -> float:
    """The validation loss at the end. Raises ammeter.Stopped."""
    os.environ["AMMETER_DIR"] = str(folder / "journals")
    with contextlib.redirect_stdout(io.StringIO()):
        return train.main(arguments).val_loss


def told(folder: Path) -> list[Event]:
    streams = [each for path in folder.iterdir() for each in journal.streams(path)]
    frames = [entry.frame for each in streams for entry in journal.read(each)]
    return [frame for frame in frames if isinstance(frame, Event) and frame.name == "guard.acted"]


def converted(training: Training, guarded: Run, folder: Path) -> Path:
    """The checkpoint that the guard names, as the trainer takes it."""
    named = guarded.stopped.checkpoint if guarded.stopped else guarded.latest
    assert named is not None
    saved = torch.load(named, weights_only=True)
    scheduler = saved["parts"]["scheduler"]
    parts = {name: saved[f"{name}s"][0] for name in ("model", "optimizer", "scaler")}
    progress = {"step": saved["step"], "applied": scheduler["last_epoch"], "batches": saved["step"]}
    recipe = read_options(training.arguments(folder / "own.pt")).recipe()
    state = {"parts": {**parts, "scheduler": scheduler}, "progress": progress, "recipe": recipe}
    checkpoint.write(folder / "own.pt", {**state, "random": saved["random"]})
    return folder / "own.pt"


def go_on(training: Training, path: Path) -> float:
    """The validation loss of the run that goes on from this checkpoint, mended; for one step where it is at its end."""
    done = torch.load(path, weights_only=True)["progress"]["step"]
    longer = replace(training, steps=max(training.steps, done + 1))
    return trained([*longer.arguments(path), "--resume"], path.parent)


def table(lines: list[Line], steps: int, seeds: int) -> str:
    rows = [
        f"| {' and '.join(f'`{each}`' for each in line.case.guards)} | `{line.case.fault}` | {line.case.arch} |"
        f" {line.bare:.4f} | {line.guarded:.4f} | {line.healthy:.4f} | {'yes' if line.rescued else 'no'} |"
        f" {what(line)} | {'nothing' if line.left_alone else 'something'} |"
        for line in lines
    ]
    return "\n".join(
        [
            "# What guards are worth",
            "",
            f"Validation loss after {steps} steps of the reference trainer (`--tiny`, float16, on the CPU), in nats,"
            f" of seed 0{f' to {seeds - 1}, on average' if seeds > 1 else ''}."
            f" Rescued: at most {100 * WITHIN:.0f} % above the healthy run. Of a run that was stopped, or that ends"
            " poisoned, the loss is that of the run that goes on: bare from the program's own last checkpoint, guarded"
            " from the one the guard names. Of activation-overflow, a change to the network that float16 cannot hold,"
            " the healthy run is that of the same network in bfloat16; of the convolutional one, whose loss differs by"
            " tens of percent from seed to seed, it says nothing. Steps are those that had closed last. Written by"
            " `python bench/zoo_guards.py --write`.",
            "",
            "| guard | fault | network | bare | guarded | healthy | rescued | what it did | to the healthy run |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def what(line: Line) -> str:
    """Its actions with their steps; of many alike the first and their number."""
    found: dict[str, list[int]] = {}
    for each in line.run.told:
        found.setdefault(each["action"], []).append(each["step"])
    return "; ".join(
        f"{action} at {steps[0]}" + (f" and {len(steps) - 1} times more" if len(steps) > 1 else "")
        for action, steps in found.items()
    )


if __name__ == "__main__":
    sys.exit(main())
