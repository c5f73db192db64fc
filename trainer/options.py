"""The command line: what can be asked of the trainer, and a clear word where it cannot be done."""

import argparse
import difflib
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from faults import REGISTRY, Fault

SIZES = {
    "gpt": {"layers": 4, "heads": 4, "width": 64, "context": 64, "batch": 8},
    "cnn": {"layers": 3, "width": 32, "pixels": 8, "batch": 16},
}
TINY = {
    "gpt": {"layers": 2, "heads": 2, "width": 32, "context": 32, "batch": 4},
    "cnn": {"layers": 2, "width": 16, "pixels": 8, "batch": 8},
}
LEARNING_RATE = {"adamw": 3e-3, "sgd": 0.3}
GUARDS = ("scale", "precision", "checkpoint", "stop")
SIZE_NAMES = tuple(dict.fromkeys(name for sizes in SIZES.values() for name in sizes))


@dataclass(frozen=True)
class Options:
    """What was asked for, checked and with every default filled in."""

    arch: str
    precision: str
    steps: int
    device: str
    optimizer: str
    lr: float
    clip: float
    accumulate: int
    batch: int
    layers: int
    width: int
    heads: int
    """0 where the network has none."""
    context: int
    """0 where the network has none."""
    pixels: int
    """0 where the network has none."""
    dropout: float
    seed: int
    checkpoint: Path | None
    checkpoint_every: int
    resume: bool
    log_every: int
    eval_every: int
    fault: Fault | None
    fault_step: int
    guard: tuple[str, ...]
    name: str

    def recipe(self) -> dict[str, str | int | float]:
        """All that has a say in the weights after N steps, except how many steps the schedule is laid out for."""
        names = ["arch", "precision", "optimizer", "lr", "clip", "accumulate", *SIZES[self.arch], "dropout", "seed"]
        return {name: getattr(self, name) for name in names}


def read_options(arguments: list[str] | None = None) -> Options:
    """The options on the command line. Leaves the program with what was wrong, the value and the remedy."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if given.list_faults:
        print(list_of_faults())
        parser.exit()
    given.optimizer = given.optimizer or (given.fault[0].optimizers[0] if given.fault else "adamw")
    given.precision = given.precision or (given.fault[0].precisions[0] if given.fault else "fp16")
    if wrong := first_mistake(given):
        parser.error(wrong)

    sizes = TINY[given.arch] if given.tiny else SIZES[given.arch]
    fault, fault_step = given.fault or (None, 0)
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    values = vars(given) | {name: getattr(given, name) or sizes.get(name, 0) for name in SIZE_NAMES}
    values |= {
        "device": auto if given.device == "auto" else given.device,
        "lr": given.lr or LEARNING_RATE[given.optimizer],
        "name": given.name or f"{given.arch}-{given.precision}" + (f"-{fault.name}" if fault else ""),
        "fault": fault,
        "fault_step": fault_step,
        "guard": tuple(dict.fromkeys(given.guard)),
    }
    return Options(**{name: value for name, value in values.items() if name not in ("tiny", "list_faults")})


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a small network in mixed precision: a GPT on the source of Python's standard library, or a"
        " convolutional one with BatchNorm on images of waves.",
    )
    run = parser.add_argument_group("the run").add_argument
    run("--arch", choices=tuple(SIZES), default="gpt", help="the network, and with it what there is to learn (gpt)")
    run(
        "--precision",
        choices=("fp32", "bf16", "fp16"),
        help="(fp16, with a loss scale; another for a fault it cannot have)",
    )
    run("--steps", type=whole(1), default=200, metavar="N", help="attempts of the optimizer (200)")
    run("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="auto: cuda where there is one (cpu)")
    run("--seed", type=whole(0), default=0, metavar="N", help="of the weights and the batches (0)")
    run("--name", help="what the run is called (ARCH-PRECISION)")
    run("--log-every", type=whole(1), default=10, metavar="N", help="steps between two lines (10)")
    run("--eval-every", type=whole(1), default=50, metavar="N", help="steps between two validations (50)")

    learning = parser.add_argument_group("learning").add_argument
    learning("--optimizer", choices=tuple(LEARNING_RATE), help="(adamw; sgd for a fault that adamw would hide)")
    learning(
        "--lr",
        type=positive,
        metavar="X",
        help="highest learning rate (3e-3 for adamw, 0.3 for sgd)",
    )
    learning("--clip", type=positive, default=1.0, metavar="X", help="largest gradient norm; inf for no limit (1)")
    learning("--accumulate", type=whole(1), default=1, metavar="N", help="batches in one step (1)")
    learning("--batch", type=whole(1), metavar="N", help=f"windows of text or images in a batch ({size('batch')})")

    network = parser.add_argument_group("the network").add_argument
    network("--layers", type=whole(1), metavar="N", help=f"({size('layers')})")
    network("--width", type=whole(8), metavar="N", help=f"({size('width')})")
    network("--heads", type=whole(1), metavar="N", help=f"of attention ({size('heads')})")
    network("--context", type=whole(2), metavar="N", help=f"characters it looks back ({size('context')})")
    network("--pixels", type=whole(2), metavar="N", help=f"on a side of an image ({size('pixels')})")
    network("--dropout", type=share, default=0.0, metavar="X", help="(0)")
    network("--tiny", action="store_true", help="other defaults: a step of a few milliseconds, for tests")

    kept = parser.add_argument_group("checkpoints").add_argument
    kept("--checkpoint", type=Path, metavar="PATH", help="the file to keep the run in")
    kept("--checkpoint-every", type=whole(1), default=50, metavar="N", help="steps between two of them (50)")
    kept("--resume", action="store_true", help="go on from --checkpoint")

    acting = parser.add_argument_group("guards").add_argument
    acting(
        "--guard",
        action="append",
        default=[],
        choices=GUARDS,
        help="let Ammeter act on the run, where it has to; may be given more than once",
    )

    broken = parser.add_argument_group("faults").add_argument
    broken("--fault", type=known_fault, metavar="NAME[@STEP]", help="break the run on purpose, from this step on")
    broken("--list-faults", action="store_true", help="say which faults there are and what they look like")
    return parser


def size(name: str) -> str:
    """Its defaults, as the help gives them: 'gpt 4, cnn 3'."""
    return ", ".join(f"{arch} {sizes[name]}" for arch, sizes in SIZES.items() if name in sizes)


def first_mistake(given: argparse.Namespace) -> str | None:
    """What fits together badly, or is not there."""
    if given.device == "cuda" and not torch.cuda.is_available():
        return "--device is 'cuda', but torch sees no CUDA device here; use --device cpu or auto."
    if wrong := wrong_size(given):
        return wrong
    if given.resume and not given.checkpoint:
        return "--resume needs to know from where; add --checkpoint PATH."
    if given.resume and not given.checkpoint.is_file():
        return f"--checkpoint is '{given.checkpoint}', which is no file to resume from; leave out --resume to start."
    if given.fault and given.precision not in given.fault[0].precisions:
        fits = " or ".join(given.fault[0].precisions)
        return f"--fault is '{given.fault[0].name}', which --precision {given.precision} cannot have; use {fits}."
    if given.fault and given.optimizer not in given.fault[0].optimizers:
        fits = " or ".join(given.fault[0].optimizers)
        return f"--fault is '{given.fault[0].name}', which --optimizer {given.optimizer} would hide; use {fits}."
    return None


def wrong_size(given: argparse.Namespace) -> str | None:
    """A size that this network does not have, or cannot have."""
    sizes = TINY[given.arch] if given.tiny else SIZES[given.arch]
    for name in SIZE_NAMES:
        if getattr(given, name) and name not in sizes:
            return f"--{name} is {getattr(given, name)}, but --arch {given.arch} has no {name}; leave it out."
    width, heads = given.width or sizes["width"], given.heads or sizes.get("heads", 1)
    if width % heads:
        return f"--width is {width}, which {heads} heads cannot share; use a multiple of {heads}."
    return None


def known_fault(text: str) -> tuple[Fault, int]:
    """The fault and the step it begins at, for NAME or NAME@STEP."""
    name, at, step = text.partition("@")
    if name not in REGISTRY:
        near = difflib.get_close_matches(name, REGISTRY, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(REGISTRY)}."
        raise argparse.ArgumentTypeError(f"there is no fault '{name}'; {hint}")
    if at and not step.isdecimal():
        raise argparse.ArgumentTypeError(f"the step of '{text}' is no whole number; write {name}@40, for instance.")
    return REGISTRY[name], int(step) if at else REGISTRY[name].first_step


def list_of_faults() -> str:
    """Every fault: from which step by default, with which precisions and optimizers, and what a person sees."""
    entries = []
    for fault in REGISTRY.values():
        fits = ", ".join(fault.precisions + (fault.optimizers if len(fault.optimizers) == 1 else ()))
        story = textwrap.fill(fault.story, 96, initial_indent="    ", subsequent_indent="    ")
        entries.append(f"{fault.name}@{fault.first_step} ({fits})\n{story}")
    return "\n".join(entries)


def whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' will not do; use a whole number of {least} or more.")
        return int(text)

    return read


def positive(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"'{text}' will not do; use a number above 0.")
    return value


def share(text: str) -> float:
    value = number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' will not do; use a number from 0 to below 1.")
    return value


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no number; write 0.5, for instance.") from None
