"""Runs the cases of a plan, a few at a time, in processes forked from this one."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from bench.wild import ablation, oracle, processes, scoring
from bench.wild.faults import FAULTS, Fault
from bench.wild.mutants import PREFIX, mutants_of, mutate
from bench.wild.oracle import Recording
from bench.wild.program import Program, assemble
from bench.wild.recipe import Recipe
from bench.wild.scoring import HEALTHY_KINDS, Score, fault_of
from bench.wild.truth import Truth


@dataclass(frozen=True)
class Case:
    """One watched program. kind: "fault", "twin", "alike", or "mutant:" and the name of a mutant of the twin."""

    recipe: Recipe
    kind: str

    def __str__(self) -> str:
        return f"{self.recipe} {self.kind}"


def cases(recipes: Sequence[Recipe]) -> Iterator[Case]:
    """For each recipe its fault, one healthy program, and for one in three a mutant of the repaired program.

    The healthy program is the look-alike if there is one, in two of three cases, else the repaired twin.
    """
    for number, recipe in enumerate(recipes):
        yield Case(recipe, "fault")
        spelling = FAULTS[recipe.fault].spellings[recipe.spelling]
        yield Case(recipe, "alike" if spelling.alike is not None and number % 3 else "twin")
        if number % 3 == 0 and (mutants := mutants_of(recipe)):
            yield Case(recipe, PREFIX + mutants[recipe.seed % len(mutants)])


def healthy_cases(recipes: Sequence[Recipe]) -> Iterator[Case]:
    """One healthy program of each recipe: the look-alike where there is one, else the repaired twin."""
    for recipe in recipes:
        spelling = FAULTS[recipe.fault].spellings[recipe.spelling]
        yield Case(recipe, "twin" if spelling.alike is None else "alike")


@dataclass(frozen=True)
class Measure:
    """How programs are watched.

    Attributes:
        without: Hooks that are off in all programs, separated by commas.
        ablate: Whether a broken program with a right finding is watched again without each hook that it uses.
    """

    without: str = ""
    ablate: bool = False


def run_all(
    plan: Sequence[Case], folder: Path, workers: int, seconds: float | None = None, measure: Measure = Measure()
) -> Iterator[Score]:
    """Yields scores as they come. After `seconds` no further recipe begins."""
    began = time.monotonic()
    groups = [list(group) for _, group in groupby(plan, lambda case: case.recipe)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        running: set[Future[list[Score]]] = set()
        waiting = list(enumerate(groups))
        while waiting or running:
            if seconds is not None and time.monotonic() - began > seconds:
                waiting.clear()
            while waiting and len(running) < workers:
                number, group = waiting.pop(0)
                running.add(pool.submit(_run_group, group, folder / str(number), measure))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()


def run(case: Case, folder: Path, *, keep: bool = False, without: str = "") -> Score:
    """Records and watches one case, and scores it."""
    try:
        return _Recipe(case.recipe, folder).score(case.kind, without)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run_group(group: Sequence[Case], folder: Path, measure: Measure) -> list[Score]:
    """The scores of cases of one recipe, each followed by those of its ablations."""
    programs, scores = _Recipe(group[0].recipe, folder), []
    try:
        for case in group:
            scores.append(programs.score(case.kind, measure.without))
            if measure.ablate and scores[-1].noticed:
                scores += programs.ablated(case.kind)
        return scores
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Recipe:
    """The programs of one recipe; each is recorded once."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe, self._folder = recipe, folder
        self._recorded: dict[str, tuple[Program, Recording]] = {}
        self._watched = 0

    def score(self, kind: str, without: str) -> Score:
        began = time.monotonic()
        truth, reason = self._truth(kind)
        if reason:
            return Score(str(self._recipe), kind, discarded=reason, seconds=time.monotonic() - began)
        self._watched += 1
        folder = self._folder / ("watched" if self._watched == 1 else f"watched{self._watched}")
        watched = processes.watch(self._recipe, truth.program, folder, without)
        return scoring.score(self._recipe, kind, truth, watched, time.monotonic() - began)

    def ablated(self, kind: str) -> Iterator[Score]:
        """Scores of the program without each hook that it uses."""
        for hook in ablation.used_by(self._recordings(kind)[0].text):
            yield msgspec.structs.replace(self.score(kind, hook), without=hook)

    def _truth(self, kind: str) -> tuple[Truth, str]:
        """What is known of a program, and why it is no test, or ''."""
        program, recording = self._recordings(kind)
        if kind in HEALTHY_KINDS:
            return Truth(program, recording), f"the healthy program {recording.trouble}" if recording.trouble else ""
        _, twin = self._recordings("twin")
        symptom = oracle.symptom(recording, twin)
        truth = Truth(program, recording, symptom, program.place_module if kind == "fault" else "")
        return truth, _proves_nothing(fault_of(self._recipe, kind), recording, twin, symptom, program.first_watched)

    def _recordings(self, kind: str) -> tuple[Program, Recording]:
        if kind not in self._recorded:
            program = _assembled(self._recipe, kind)
            folder = self._folder / kind.replace(":", "-")
            self._recorded[kind] = program, processes.record(self._recipe, program, folder)
        return self._recorded[kind]


def _proves_nothing(fault: Fault, broken: Recording, twin: Recording, symptom: int | None, first_watched: int) -> str:
    """Why a broken program is no test, or ''."""
    if twin.trouble:
        return f"the repaired twin {twin.trouble}"
    if broken.code != 0 and not fault.ends:
        last = broken.output.strip().splitlines()[-1:] or ["no output"]
        return f"the program ended with {broken.code}: {last[0][:160]}"
    if symptom is None and fault.numbers_change:
        return "its numbers are those of the twin"
    if len(broken.rows) < first_watched:
        return f"it ended after {len(broken.rows)} steps, before its watch()"
    return ""


def _assembled(recipe: Recipe, kind: str) -> Program:
    program = mutate(recipe, kind.removeprefix(PREFIX)) if kind.startswith(PREFIX) else assemble(recipe, kind)
    if program is None:
        raise ValueError(f"{recipe} has no program of the kind {kind}")
    return program
