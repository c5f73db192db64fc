"""The steps of a run with several lives on one axis.

A life is the record of one process of a rank; each process counts its own steps from 0. The step of the run is the
life's own step plus the life's offset. A life that resumes from an older checkpoint replaces the steps that it repeats.
Pure, and the only definition: findings, reports, the gate, comparisons and charts all use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ammeter.wire.columns import Ints


@dataclass(frozen=True)
class LifeRecord:
    """Everything about a life that decides where its steps lie.

    first_step, last_step: its own steps, -1 without rows. updates_before: optimizer updates before its first step.
    loaded: checkpoints that it read before its first step. saved: path -> its own steps before that checkpoint.
    skipped: its own steps in which no optimizer stepped, ascending.
    """

    first_step: int = -1
    last_step: int = -1
    first_time: int = 0
    last_time: int = 0
    updates_before: int | None = None
    loaded: Sequence[str] = ()
    saved: Mapping[str, int] = field(default_factory=dict)
    skipped: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Place:
    """Where a life lies on the axis of its run: its own step n is step begin + n of the run.

    end: the step of the run from which later lives replace this one; None where none does.
    """

    begin: int = 0
    end: int | None = None

    def steps_of_run(self, steps: Ints) -> Ints:
        """The steps of the run for a life's own ascending steps, without those that a later life replaces."""
        placed = steps + self.begin
        return placed if self.end is None else placed[: int(np.searchsorted(placed, self.end))]


def place(lives: Sequence[LifeRecord]) -> list[Place | None]:
    """The place of each life of a run, the first life first.

    None stands for a life without steps, and for a process that ran beside another one and so does not continue it.
    """
    places: list[Place | None] = []
    saved: dict[str, int] = {}
    skipped = np.zeros(0, np.int64)
    first: LifeRecord | None = None
    before: LifeRecord | None = None
    end = 0
    for life in lives:
        if life.first_step < 0 or (before is not None and life.first_time < before.last_time):
            places.append(None)
            continue
        if first is None:
            first, begin = life, 0
        else:
            begin = _begin_of(life, skipped, saved, first.updates_before or 0, end)
        reached = begin + life.first_step
        places = [_ended_at(earlier, reached) for earlier in places] + [Place(begin)]
        skipped = np.concatenate([skipped[: int(np.searchsorted(skipped, reached))], life.skipped + begin])
        saved |= {path: begin + step for path, step in life.saved.items()}
        end = begin + life.last_step + 1
        before = life
    return places


def _ended_at(earlier: Place | None, step: int) -> Place | None:
    if earlier is None:
        return None
    return replace(earlier, end=step if earlier.end is None else min(earlier.end, step))


def _begin_of(life: LifeRecord, skipped: Ints, saved: Mapping[str, int], updates_at_first: int, end: int) -> int:
    """The step of the run that is step 0 of a later life.

    A life whose own steps begin above 0 counts on by itself. Otherwise the updates of its optimizer decide, or the
    checkpoint that it loaded. Without either it continues after the last step of the life before it.
    """
    if life.first_step > 0:
        return 0
    if life.updates_before is not None:
        step = max(0, life.updates_before - updates_at_first)
        for skipped_step in skipped.tolist():
            step += skipped_step < step  # a skipped step is no update
        return min(step, end)
    return next((saved[path] for path in reversed(life.loaded) if path in saved), end)
