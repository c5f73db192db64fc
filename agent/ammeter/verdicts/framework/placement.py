"""Places the steps of a run with several attempts on one axis.

Each process of a rank is one attempt and counts its own steps from 0. A step of the run is the attempt's own step plus
the attempt's offset. An attempt that resumes from an older checkpoint replaces the steps that it repeats.
Findings, reports, the gate, comparisons and charts all use this pure module, so there is one definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ammeter.wire.columns import Ints


@dataclass(frozen=True)
class LifeRecord:
    """The data of an attempt that determine the position of its steps.

    Attributes:
        first_step: Its first own step, -1 without rows.
        last_step: Its last own step, -1 without rows.
        updates_before: Optimizer updates before its first step.
        loaded: Checkpoints that it read before its first step.
        saved: Path of a checkpoint -> number of own steps before it.
        skipped: Its own steps in which no optimizer stepped, ascending.
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
    """The position of an attempt on the axis of its run: own step n is step begin + n.

    Attributes:
        begin: The offset of the attempt.
        end: The step of the run from which later attempts replace this one; None if none does.
    """

    begin: int = 0
    end: int | None = None

    def steps_of_run(self, steps: Ints) -> Ints:
        """Converts an attempt's own ascending steps to steps of the run.

        The result omits steps that a later attempt replaces.
        """
        placed = steps + self.begin
        return placed if self.end is None else placed[: int(np.searchsorted(placed, self.end))]


def place(lives: Sequence[LifeRecord]) -> list[Place | None]:
    """Returns the place of each attempt of a run, in the order of the attempts.

    None stands for an attempt without steps, and for a process that ran in parallel with another one and so does not
    continue it.
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
    """Returns the step of the run that is step 0 of a later attempt.

    An attempt whose own steps begin above 0 already counts the steps of the run. Otherwise the number of its optimizer
    updates decides, or the checkpoint that it loaded. Without either it continues after the last step of the previous
    life.
    """
    if life.first_step > 0:
        return 0
    if life.updates_before is not None:
        step = max(0, life.updates_before - updates_at_first)
        for skipped_step in skipped.tolist():
            step += skipped_step < step  # skipped steps are not in the count of updates
        return min(step, end)
    return next((saved[path] for path in reversed(life.loaded) if path in saved), end)
