"""Command line of the trainer: what it accepts, the defaults, and errors with value and remedy."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch

SIZES = {
    "gpt": {"layers": 4, "heads": 4, "width": 64, "context": 64, "batch": 8},
    "cnn": {"layers": 3, "width": 32, "pixels": 8, "batch": 16},
}
TINY = {
    "gpt": {"layers": 2, "heads": 2, "width": 32, "context": 32, "batch": 4},
    "cnn": {"layers": 2, "width": 16, "pixels": 8, "batch": 8},
}
LEARNING_RATE = {"adamw": 3e-3, "sgd": 0.3}
SIZE_NAMES = tuple(dict.fromkeys(name for sizes in SIZES.values() for name in sizes))


@dataclass(frozen=True)
class Options:
    """Options of a run: checked, and with every default filled in. A size that the network lacks is 0."""

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
    context: int
    pixels: int
    dropout: float
    seed: int
    checkpoint: Path | None
    checkpoint_every: int
    resume: bool
    log_every: int
    eval_every: int
    name: str

    def recipe(self) -> dict[str, str | int | float]:
        """Everything that decides the weights after N steps, except the length of the schedule."""
        names = ["arch", "precision", "optimizer", "lr", "clip", "accumulate", *SIZES[self.arch], "dropout", "seed"]
        return {name: getattr(self, name) for name in names}


def read_options(arguments: list[str] | None = None) -> Options:
    """Reads the command line. Ends the program where an argument cannot be used."""
    parser = build_parser()
    return complete(parser.parse_args(arguments), parser)


def complete(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Options:
    """Checks what was given, and fills in the defaults."""
    given.precision = given.precision or "fp16"
    given.optimizer = given.optimizer or "adamw"
    if mistake := first_mistake(given):
        parser.error(mistake)
    sizes = TINY[given.arch] if given.tiny else SIZES[given.arch]
    best_device = "cuda" if torch.cuda.is_available() else "cpu"
    values = vars(given) | {name: getattr(given, name) or sizes.get(name, 0) for name in SIZE_NAMES}
    values |= {
        "device": best_device if given.device == "auto" else given.device,
        "lr": given.lr or LEARNING_RATE[given.optimizer],
        "name": given.name or f"{given.arch}-{given.precision}",
    }
    return Options(**{field.name: values[field.name] for field in fields(Options)})


def build_parser(program: str = "train.py") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Train a small network in mixed precision: a GPT on the source of Python's standard library, or a"
        " convolutional network with BatchNorm on images of waves.",
    )
    run = parser.add_argument_group("the run").add_argument
    run("--arch", choices=tuple(SIZES), default="gpt", help="the network, and with it the data (gpt)")
    run("--precision", choices=("fp32", "bf16", "fp16"), help="fp16 has a loss scale (fp16)")
    run("--steps", type=at_least(1), default=200, metavar="N", help="attempts of the optimizer (200)")
    run("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="auto: cuda where there is one (cpu)")
    run("--seed", type=at_least(0), default=0, metavar="N", help="of the weights and the batches (0)")
    run("--name", help="of the run, for Ammeter (ARCH-PRECISION)")
    run("--log-every", type=at_least(1), default=10, metavar="N", help="steps between two lines (10)")
    run("--eval-every", type=at_least(1), default=50, metavar="N", help="steps between two validations (50)")

    learning = parser.add_argument_group("learning").add_argument
    learning("--optimizer", choices=tuple(LEARNING_RATE), help="(adamw)")
    learning("--lr", type=positive, metavar="X", help="highest learning rate (3e-3 for adamw, 0.3 for sgd)")
    learning("--clip", type=positive, default=1.0, metavar="X", help="largest gradient norm; inf for no limit (1)")
    learning("--accumulate", type=at_least(1), default=1, metavar="N", help="batches in one step (1)")
    learning("--batch", type=at_least(1), metavar="N", help=f"windows of text or images in a batch ({size('batch')})")

    network = parser.add_argument_group("the network").add_argument
    network("--layers", type=at_least(1), metavar="N", help=f"({size('layers')})")
    network("--width", type=at_least(8), metavar="N", help=f"({size('width')})")
    network("--heads", type=at_least(1), metavar="N", help=f"of attention ({size('heads')})")
    network("--context", type=at_least(2), metavar="N", help=f"characters it looks back ({size('context')})")
    network("--pixels", type=at_least(2), metavar="N", help=f"on a side of an image ({size('pixels')})")
    network("--dropout", type=share, default=0.0, metavar="X", help="(0)")
    network("--tiny", action="store_true", help="other defaults: a step of a few milliseconds, for tests")

    checkpoints = parser.add_argument_group("checkpoints").add_argument
    checkpoints("--checkpoint", type=Path, metavar="PATH", help="the file to keep the run in")
    checkpoints("--checkpoint-every", type=at_least(1), default=50, metavar="N", help="steps between two of them (50)")
    checkpoints("--resume", action="store_true", help="go on from --checkpoint")
    return parser


def size(name: str) -> str:
    """The defaults of a size for the help: 'gpt 4, cnn 3'."""
    return ", ".join(f"{arch} {sizes[name]}" for arch, sizes in SIZES.items() if name in sizes)


def first_mistake(given: argparse.Namespace) -> str | None:
    """The first option that does not fit the others or this machine; None where all do."""
    if given.device == "cuda" and not torch.cuda.is_available():
        return "--device is 'cuda', but torch sees no CUDA device here; use --device cpu or auto."
    if wrong := wrong_size(given):
        return wrong
    if given.resume and not given.checkpoint:
        return "--resume needs to know from where; add --checkpoint PATH."
    if given.resume and not given.checkpoint.is_file():
        return f"--checkpoint is '{given.checkpoint}', which is no file to resume from; leave out --resume to start."
    return None


def wrong_size(given: argparse.Namespace) -> str | None:
    """The first size that this network does not have, or cannot have."""
    sizes = TINY[given.arch] if given.tiny else SIZES[given.arch]
    for name in SIZE_NAMES:
        if getattr(given, name) and name not in sizes:
            return f"--{name} is {getattr(given, name)}, but --arch {given.arch} has no {name}; leave it out."
    width, heads = given.width or sizes["width"], given.heads or sizes.get("heads", 1)
    if width % heads:
        return f"--width is {width}, which {heads} heads cannot share; use a multiple of {heads}."
    return None


def at_least(least: int) -> Callable[[str], int]:
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
