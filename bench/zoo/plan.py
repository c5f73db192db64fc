"""Which trainings there are in the zoo: every fault of the trainer's registry on every network, and healthy ones.

A fault's precisions and optimizers take turns with the seeds. With the first seed each is tried once more as a budget
of 1 % has it read, which is what a user has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bench.zoo import healthy
from bench.zoo.trainer import REGISTRY, Fault, build_parser

STEPS = 150
"""Of a training, or so many times that as a verdict may take. A broken one has as many as its healthy twin, for the
learning rate depends on it."""

FIRST_LIFE = 60
"""Steps before a run that goes on from a checkpoint."""

LATER = 27
"""Steps from a fault's first onset to its second; no multiple of anything that the trainer does every so often."""

LONG = 1500
"""Steps at least where the default budget decides what is read: of steps as short as these it reads few."""

OFTEN = ["--eval-every", "15"]
"""So that two runs can be compared by their validation."""

PRECISIONS = ("fp16", "bf16", "fp32")


class Case(msgspec.Struct, frozen=True):
    """One training. what: a fault, a program of bench/zoo/healthy, or "" for the trainer as it is.

    onset: the step at which the fault begins, in the run that is looked at. life: "" for a run as such, "kept" for one
    that saves checkpoints, "resumed" for one that goes on from one. frugal: it is read as the default budget has it,
    not at every step.
    """

    what: str
    arch: str = ""
    precision: str = ""
    optimizer: str = ""
    seed: int = 0
    onset: int = 0
    life: str = ""
    steps: int = STEPS
    ranks: int = 1
    frugal: bool = False

    @property
    def fault(self) -> bool:
        return self.what in REGISTRY

    @property
    def twin(self) -> Case:
        """The same training without the fault."""
        return msgspec.structs.replace(self, what="", onset=0, frugal=False)

    @property
    def is_first_onset(self) -> bool:
        return not self.fault or self.life == "resumed" or self.onset == REGISTRY[self.what].first_step

    @property
    def words(self) -> list[str]:
        """The trainer's command line."""
        words = ["--tiny", "--precision", self.precision, "--optimizer", self.optimizer, "--seed", str(self.seed)]
        words += ["--arch", self.arch, "--steps", str(self.steps), "--eval-every", "1000", "--log-every", "1000"]
        words += ["--fault", f"{self.what}@{self.onset}"] if self.fault else []
        return words + (OFTEN if self.baseline else [])

    @property
    def baseline(self) -> list[str] | None:
        """That of the run which it is held against, where its fault takes one."""
        against = REGISTRY[self.what].against if self.fault else None
        return None if against is None else [*self.twin.words, *OFTEN, *against, "--name", "baseline"]

    def __str__(self) -> str:
        name = self.what or "the trainer"
        onset = f"@{self.onset}" if self.onset else ""
        rest = (self.arch, self.precision, self.optimizer, self.life, f"seed {self.seed}", "frugal" * self.frugal)
        return " ".join((name + onset, *filter(None, rest)))


@dataclass(frozen=True)
class Plan:
    """How much is tried. only: words of which a case's name has to have one. frugal: whether faults are tried at the
    default budget, too."""

    seeds: Sequence[int] = (0, 1, 2)
    onsets: int = 2
    only: Sequence[str] = ("",)
    frugal: bool = True

    def cases(self) -> list[Case]:
        """Twins first, then each fault, then the healthy programs, then faults at the default budget."""
        broken = [each for each in faulty(self.seeds, self.onsets) if self.wants(each.what)]
        twins = list(dict.fromkeys(each.twin for each in broken))
        if self.wants("the trainer"):
            twins = list(dict.fromkeys([*twins, *trainer_as_it_is(self.seeds)]))
        sound = [each for each in programs(self.seeds) if self.wants(each.what)]
        return [*twins, *broken, *sound, *map(at_default_budget, self._firsts(broken) if self.frugal else ())]

    def _firsts(self, broken: Sequence[Case]) -> Iterator[Case]:
        return (each for each in broken if each.seed == self.seeds[0] and each.is_first_onset)

    def wants(self, name: str) -> bool:
        return any(word in name for word in self.only)


def faulty(seeds: Sequence[int], onsets: int) -> Iterator[Case]:
    for name, fault in REGISTRY.items():
        for arch in archs():
            for turn, seed in enumerate(seeds):
                precision = fault.precisions[turn % len(fault.precisions)]
                optimizer = fault.optimizers[turn % len(fault.optimizers)]
                for onset in (fault.first_step, fault.first_step + LATER)[: onsets if fault.first_step else 1]:
                    steps = enough(fault, onset)
                    yield Case(name, arch, precision, optimizer, seed, onset, fault.expected.life, steps, fault.ranks)


def at_default_budget(case: Case) -> Case:
    """Longer, where it is not two runs that are compared when they are over."""
    steps = case.steps if REGISTRY[case.what].against is not None else max(LONG, case.steps)
    return msgspec.structs.replace(case, steps=steps, frugal=True)


def enough(fault: Fault, onset: int) -> int:
    """Steps by which its verdict may be expected, where something is read in every third of them at least."""
    within = 3 * fault.expected.within if fault.expected.counted else fault.expected.within
    return STEPS * math.ceil((onset + within + 1) / STEPS)


def trainer_as_it_is(seeds: Sequence[int]) -> Iterator[Case]:
    for arch in archs():
        for turn, seed in enumerate(seeds):
            for life in ("", "kept", "resumed"):
                yield Case("", arch, PRECISIONS[turn % len(PRECISIONS)], "adamw", seed, 0, life)


def programs(seeds: Sequence[int]) -> Iterator[Case]:
    for program in healthy.PROGRAMS.values():
        for precision in program.precisions:
            for seed in seeds[:2]:
                yield Case(program.name, precision=precision, seed=seed)


def archs() -> list[str]:
    """The networks that the trainer can train."""
    return next(list(each.choices or ()) for each in build_parser()._actions if "--arch" in each.option_strings)
