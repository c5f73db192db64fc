"""The trainings of the zoo: every fault of the trainer's registry on every network, and healthy trainings.

A fault's precisions and optimizers alternate with the seeds. With the first seed each fault runs once more with the
default budget of 1 %, as users have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bench.zoo import healthy
from bench.zoo.trainer import REGISTRY, Fault, build_parser

STEPS = 150
"""Steps of a training, or the multiple that a verdict needs. A broken training has as many as its healthy twin, because
the learning rate depends on their number."""

FIRST_LIFE = 60
"""Steps before the checkpoint from which a resumed run continues."""

SECOND_ONSET_STEPS = 27
"""Steps from a fault's first onset to its second; no multiple of any interval in the trainer."""

DEFAULT_BUDGET_STEPS = 1500
"""Steps at least with the default budget, which reads only few of steps as short as these."""

FREQUENT_EVALUATION = ["--eval-every", "15"]
"""Allows a comparison of two runs by their validation loss."""

PRECISIONS = ("fp16", "bf16", "fp32")


class Case(msgspec.Struct, frozen=True):
    """One training.

    Attributes:
        what: A fault, a program of bench/zoo/healthy, or "" for the trainer without a fault.
        onset: The first step of the fault.
        life: "" for a simple run, "kept" for a run that saves checkpoints, "resumed" for a run that resumes from one.
        frugal: Whether the default budget decides what is read; otherwise every step is read.
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
    def arguments(self) -> list[str]:
        """The arguments of the trainer."""
        arguments = ["--tiny", "--precision", self.precision, "--optimizer", self.optimizer, "--seed", str(self.seed)]
        arguments += ["--arch", self.arch, "--steps", str(self.steps), "--eval-every", "1000", "--log-every", "1000"]
        arguments += ["--fault", f"{self.what}@{self.onset}"] if self.fault else []
        return arguments + (FREQUENT_EVALUATION if self.baseline else [])

    @property
    def baseline(self) -> list[str] | None:
        """The arguments of the baseline run, where the fault needs one to show."""
        against = REGISTRY[self.what].against if self.fault else None
        return None if against is None else [*self.twin.arguments, *FREQUENT_EVALUATION, *against, "--name", "baseline"]

    def __str__(self) -> str:
        name = self.what or "the trainer"
        onset = f"@{self.onset}" if self.onset else ""
        rest = (self.arch, self.precision, self.optimizer, self.life, f"seed {self.seed}", "frugal" * self.frugal)
        return " ".join((name + onset, *filter(None, rest)))


@dataclass(frozen=True)
class Plan:
    """The extent of the zoo.

    Attributes:
        only: Words; the name of a case has to contain one of them.
        frugal: Whether faults run with the default budget as well.
    """

    seeds: Sequence[int] = (0, 1, 2)
    onsets: int = 2
    only: Sequence[str] = ("",)
    frugal: bool = True

    def cases(self) -> list[Case]:
        """Twins first, then each fault, then the healthy programs, then faults at the default budget."""
        broken = [case for case in faulty(self.seeds, self.onsets) if self.includes(case.what)]
        twins = list(dict.fromkeys(case.twin for case in broken))
        if self.includes("the trainer"):
            twins = list(dict.fromkeys([*twins, *trainer_as_it_is(self.seeds)]))
        sound = [case for case in programs(self.seeds) if self.includes(case.what)]
        return [*twins, *broken, *sound, *map(at_default_budget, self._firsts(broken) if self.frugal else ())]

    def _firsts(self, broken: Sequence[Case]) -> Iterator[Case]:
        return (case for case in broken if case.seed == self.seeds[0] and case.is_first_onset)

    def includes(self, name: str) -> bool:
        return any(word in name for word in self.only)


def faulty(seeds: Sequence[int], onsets: int) -> Iterator[Case]:
    for name, fault in REGISTRY.items():
        for arch in archs():
            for turn, seed in enumerate(seeds):
                precision = fault.precisions[turn % len(fault.precisions)]
                optimizer = fault.optimizers[turn % len(fault.optimizers)]
                for onset in (fault.first_step, fault.first_step + SECOND_ONSET_STEPS)[
                    : onsets if fault.first_step else 1
                ]:
                    steps = steps_for(fault, onset)
                    yield Case(name, arch, precision, optimizer, seed, onset, fault.expected.life, steps, fault.ranks)


def at_default_budget(case: Case) -> Case:
    """The case with the default budget: longer, unless its fault compares two finished runs."""
    steps = case.steps if REGISTRY[case.what].against is not None else max(DEFAULT_BUDGET_STEPS, case.steps)
    return msgspec.structs.replace(case, steps=steps, frugal=True)


def steps_for(fault: Fault, onset: int) -> int:
    """Steps after which the verdict has to be there if at least every third step is read."""
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
    """The trainer's networks."""
    return next(list(option.choices or ()) for option in build_parser()._actions if "--arch" in option.option_strings)
