"""Runs train.py with a fault, with guards against it, or with both. train.py contains neither.

python trainer/broken.py --tiny --fault scale-collapse@40
python trainer/broken.py --tiny --fault overflow-storm --guard scale
torchrun --nproc-per-node 2 trainer/broken.py --fault ranks-disagree
"""

import argparse
import difflib
import functools
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import torch

import ammeter
import options
from console import Summary
from faults import REGISTRY, Fault, inject
from faults.inject import replace
from train import Trainer


def main(arguments: list[str] | None = None) -> Summary:
    given, chosen = read_arguments(arguments)
    trainer = Trainer(chosen)
    if given.fault:
        fault, first_step = given.fault
        inject(fault, first_step, trainer)
    if given.guard:
        add_guards(trainer, given.guard)
    return trainer.train()


def read_arguments(arguments: list[str] | None = None) -> tuple[argparse.Namespace, options.Options]:
    """Reads the command line of train.py with --fault and --guard. A fault chooses defaults that show it."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if given.list_faults:
        print(list_of_faults())
        parser.exit()
    if given.fault:
        fault, _ = given.fault
        given.precision = given.precision or fault.precisions[0]
        given.optimizer = given.optimizer or fault.optimizers[0]
        given.name = given.name or f"{given.arch}-{given.precision}-{fault.name}"
        if mistake := misfit(fault, given):
            parser.error(mistake)
    return given, options.complete(given, parser)


def build_parser() -> argparse.ArgumentParser:
    parser = options.build_parser("broken.py")
    add = parser.add_argument_group("faults and guards").add_argument
    add("--fault", type=known_fault, metavar="NAME[@STEP]", help="break the run, from this step on")
    add("--list-faults", action="store_true", help="list the faults and their symptoms")
    add("--guard", action="append", default=[], choices=tuple(GUARDS), help="let Ammeter act; may be repeated")
    return parser


def known_fault(text: str) -> tuple[Fault, int]:
    """The fault and its first step, for NAME or NAME@STEP."""
    name, at, step = text.partition("@")
    if name not in REGISTRY:
        near = difflib.get_close_matches(name, REGISTRY, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(REGISTRY)}."
        raise argparse.ArgumentTypeError(f"there is no fault '{name}'; {hint}")
    if at and not step.isdecimal():
        raise argparse.ArgumentTypeError(f"the step of '{text}' is no whole number; write {name}@40, for instance.")
    return REGISTRY[name], int(step) if at else REGISTRY[name].first_step


def misfit(fault: Fault, given: argparse.Namespace) -> str | None:
    """The option with which this fault cannot occur or cannot be seen; None where there is none."""
    if given.precision not in fault.precisions:
        fits = " or ".join(fault.precisions)
        return f"--fault is '{fault.name}', which --precision {given.precision} cannot have; use {fits}."
    if given.optimizer not in fault.optimizers:
        fits = " or ".join(fault.optimizers)
        return f"--fault is '{fault.name}', which --optimizer {given.optimizer} would hide; use {fits}."
    return None


def list_of_faults() -> str:
    """Every fault with its first step, precisions and optimizers, and its symptoms."""
    entries = []
    for fault in REGISTRY.values():
        fits = ", ".join(fault.precisions + (fault.optimizers if len(fault.optimizers) == 1 else ()))
        story = textwrap.fill(fault.story, 96, initial_indent="    ", subsequent_indent="    ")
        entries.append(f"{fault.name}@{fault.first_step} ({fits})\n{story}")
    return "\n".join(entries)


GUARDS: dict[str, Callable[[Trainer], Any]] = {
    "scale": lambda _: ammeter.guards.Scale(),
    "precision": lambda _: ammeter.guards.Precision(),
    "checkpoint": lambda trainer: ammeter.guards.Checkpoint(
        every_steps=trainer.options.checkpoint_every, parts={"scheduler": trainer.scheduler}
    ),
    "stop": lambda _: ammeter.guards.Stop(),
}


def add_guards(trainer: Trainer, names: list[str]) -> None:
    """Adds guards to watch(), and lets the precision guard choose the dtype of autocast."""
    guards = [GUARDS[name](trainer) for name in dict.fromkeys(names)]
    replace(trainer, watch=functools.partial(trainer.watch, guards=guards))
    autocast = trainer.autocast

    def guarded_autocast() -> torch.autocast:
        context = autocast()
        return trainer.run.autocast(context.device, context.fast_dtype, enabled=context._enabled)

    replace(trainer, autocast=guarded_autocast)


if __name__ == "__main__":
    try:
        main()
    except ammeter.Stopped as stopped:
        sys.exit(f"broken.py: stopped by a guard: {stopped}")
