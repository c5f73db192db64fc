"""Runs the cases of a plan, a few at a time, in processes forked from this one."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from bench.wild import oracle, processes, scoring
from bench.wild.claims import Truth
from bench.wild.faults import FAULTS, Fault
from bench.wild.mutants import PREFIX, mutants_of, mutate
from bench.wild.oracle import Recording
from bench.wild.program import Program, assemble
from bench.wild.recipe import Recipe
from bench.wild.scoring import HEALTHY_KINDS, Score, fault_of


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


def run_all(plan: Sequence[Case], folder: Path, workers: int, seconds: float | None = None) -> Iterator[Score]:
    """Yields scores as they come. After `seconds` no further case begins."""
    began = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        running: set[Future[Score]] = set()
        waiting = list(enumerate(plan))
        while waiting or running:
            if seconds is not None and time.monotonic() - began > seconds:
                waiting.clear()
            while waiting and len(running) < workers:
                number, case = waiting.pop(0)
                running.add(pool.submit(run, case, folder / str(number)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def run(case: Case, folder: Path, *, keep: bool = False) -> Score:
    """Records and watches one case, and scores it."""
    began = time.monotonic()
    try:
        return _run(case, folder, began)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run(case: Case, folder: Path, began: float) -> Score:
    recipe, kind = case.recipe, case.kind
    program = _assembled(recipe, kind)
    recording = processes.record(recipe, program, folder / kind)
    symptom, reason = None, ""
    broken = kind not in HEALTHY_KINDS
    if broken:
        twin = processes.record(recipe, _assembled(recipe, "twin"), folder / "repaired")
        symptom = oracle.symptom(recording, twin)
        reason = _proves_nothing(fault_of(recipe, kind), recording, twin, symptom)
    elif recording.trouble:
        reason = f"the healthy program {recording.trouble}"
    if reason:
        return Score(str(recipe), kind, discarded=reason, seconds=time.monotonic() - began)
    watched = processes.watch(recipe, program, folder / "watched")
    truth = Truth(program, recording, symptom, program.place_module if kind == "fault" else "")
    return scoring.score(recipe, kind, truth, watched, time.monotonic() - began)


def _proves_nothing(fault: Fault, broken: Recording, twin: Recording, symptom: int | None) -> str:
    """Why a broken program is no test, or ''."""
    if twin.trouble:
        return f"the repaired twin {twin.trouble}"
    if broken.code != 0 and not fault.ends:
        last = broken.output.strip().splitlines()[-1:] or ["no output"]
        return f"the program ended with {broken.code}: {last[0][:160]}"
    if symptom is None and fault.numbers_change:
        return "its numbers are those of the twin"
    return ""


def _assembled(recipe: Recipe, kind: str) -> Program:
    program = mutate(recipe, kind.removeprefix(PREFIX)) if kind.startswith(PREFIX) else assemble(recipe, kind)
    if program is None:
        raise ValueError(f"{recipe} has no program of the kind {kind}")
    return program
