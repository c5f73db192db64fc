"""A public program: where it comes from, how it is made small, and what stands in for its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SITE = Path(__file__).parent / "site"
"""The sitecustomize of each Python of a program."""


def no_data(_: Path) -> None:
    """A program that makes its own data."""


@dataclass(frozen=True)
class Fault:
    """A fault of bench/public/site/sitecustomize.py.

    Attributes:
        name: Its name there.
        verdicts: The verdicts that name it.
        step: The optimizer's step at which it begins.
        precision: The precision that it needs, '' for any.
    """

    name: str
    verdicts: tuple[str, ...]
    step: int = 30
    precision: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.step}"


NAN_WEIGHT = Fault("nan-weight", ("nonfinite-weights",))
NO_RESET = Fault("no-reset", ("gradients-not-reset",))
HIGH_RATE = Fault("high-rate", ("diverged",))
NOT_UNSCALED = Fault("not-unscaled", ("gradients-not-unscaled",), precision="fp16")


@dataclass(frozen=True)
class Program:
    """A program of others.

    Attributes:
        name: Its name in the table.
        repository: Owner and name.
        commit: The commit that runs.
        script: Path of the script in the repository. It runs in its own folder.
        paths: Files and folders that it needs of the repository, () for all.
        options: Command line that makes it small.
        sizes: File, text, smaller text: numbers for which there is no option, and a seed where there is none.
        data: Makes what stands in for data that would be downloaded, in the folder of the repository.
        prepare: Scripts of the repository that run before it.
        precisions: Precision -> further options, or variables of the environment as NAME=VALUE.
        optimizers: Optimizers that step in one step of the training; 0 if the program changes its weights itself.
        varying: What differs in the output from run to run, as a regular expression: times.
        kind: What it is an example of.
        modules: Modules that it imports and that may be missing.
    """

    name: str
    repository: str
    commit: str
    script: str
    kind: str
    paths: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    sizes: tuple[tuple[str, str, str], ...] = ()
    data: Callable[[Path], None] = no_data
    prepare: tuple[str, ...] = ()
    precisions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"fp32": ()})
    optimizers: int = 1
    varying: str = ""
    faults: tuple[Fault, ...] = (NAN_WEIGHT,)
    modules: tuple[str, ...] = ()

    def command(self, precision: str, script: str) -> list[str]:
        """Script and options."""
        return [script, *self.options, *(option for option in self.precisions[precision] if option[0] == "-")]

    def environment(self, precision: str) -> dict[str, str]:
        """Variables of the environment."""
        pairs = (setting.partition("=") for setting in self.precisions[precision] if setting[0] != "-")
        return {name: value for name, _, value in pairs}
