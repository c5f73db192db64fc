"""Runs the program of a case and its repaired form under `ammeter run`, a few cases at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.cases.case import Case
from bench.cases.scoring import Score, score
from bench.common.watched import Watched, watch

REPAIRED = "--repaired"
BUSY = 5
"""Times the limit of a case that a program may take: other programs run beside it."""


def run_all(cases: Sequence[Case], workers: int) -> Iterator[tuple[Case, Score]]:
    """Yields the cases with their scores, in order."""
    with ThreadPoolExecutor(workers) as pool:
        yield from zip(cases, pool.map(run, cases), strict=True)


def run(case: Case) -> Score:
    """Watches the broken and the repaired program, and scores them."""
    return score(case, watched(case), watched(case, REPAIRED))


def watched(case: Case, *arguments: str) -> Watched:
    """Watches a copy of the program in a folder of its own, so that nothing of this repository is near it."""
    with tempfile.TemporaryDirectory(prefix="case-") as name:
        folder = Path(name)
        script = Path(shutil.copy(case.path, folder))
        return watch([str(script), *arguments], folder, ranks=case.ranks, seconds=BUSY * case.seconds)
