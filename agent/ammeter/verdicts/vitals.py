"""What ranks are compared by: a few columns of each, at the steps that all of them have, and where each of them stands.

Pure, and the same over journals and over what a collector holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from ammeter.block import Floats, Ints, View

VITALS = ("scale", "growth_tracker", "skipped", "loss", "grad_norm")

AHEAD_SECONDS = 300
"""How long a rank that others have left behind makes no step: half of what NCCL waits before it raises."""


@dataclass(frozen=True)
class Standing:
    """Where a rank is. time: of its last row, in ns of its host's clock. stands: it lives, and makes no step."""

    rank: int
    step: int
    time: int
    stands: bool


def standing(rank: int, step: int, time: int, ended: int | None, by_itself: bool) -> Standing:
    """ended: when the process was over, in ns of its clock, None while it lives. by_itself: whether it meant to."""
    stands = ended is None or (not by_itself and ended - time >= AHEAD_SECONDS * 10**9)
    return Standing(rank, step, time, stands)


@dataclass(frozen=True)
class Together:
    """A stretch of steps that all these ranks have, ascending. columns: name -> float32[ranks, steps].

    sharded: whether they hold parts of one model's tensors. standings: at the end of a look.
    """

    ranks: tuple[int, ...] = ()
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Mapping[str, Floats] = field(default_factory=dict)
    sharded: bool = False
    standings: tuple[Standing, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str) -> Floats:
        """float32[ranks, steps], one of VITALS."""
        return self.columns[name]


def in_step(ranks: Mapping[int, Iterable[View]], over: Collection[int], after: int = -1) -> Iterator[Together]:
    """The steps behind `after` that all ranks have, up to the lowest that each of them has reached.

    over: ranks that have ended; those that are left are compared without them from there on.
    """
    readers = {rank: _behind(ranks[rank], after) for rank in sorted(ranks)}
    here = {rank: next(reader, None) for rank, reader in readers.items()}
    while True:
        if any(view is None and rank not in over for rank, view in here.items()):
            return
        views = {rank: view for rank, view in here.items() if view is not None}
        if len(views) < 2:
            return
        reached = min(int(view.steps[-1]) for view in views.values())
        cuts = {rank: int(np.searchsorted(view.steps, reached, "right")) for rank, view in views.items()}
        yield _stacked({rank: view.rows(0, cuts[rank]) for rank, view in views.items()})
        rest = {rank: view.rows(cuts[rank], len(view)) for rank, view in views.items()}
        here = {rank: view if len(view) else next(readers[rank], None) for rank, view in rest.items()}


def _behind(views: Iterable[View], after: int) -> Iterator[View]:
    for view in views:
        begin = int(np.searchsorted(view.steps, after, "right"))
        if begin < len(view):
            yield view.rows(begin, len(view))


def _stacked(views: Mapping[int, View]) -> Together:
    every: Sequence[View] = list(views.values())
    steps: Ints = reduce(np.intersect1d, [view.steps for view in every])
    places = [np.searchsorted(view.steps, steps) for view in every]
    columns = {
        name: np.array([view.scalar(name)[at] for view, at in zip(every, places, strict=True)], np.float32)
        for name in VITALS
    }
    sharded = any(tensor.copies for view in every for tensor in view.schema.tensors)
    return Together(tuple(views), steps, columns, sharded)
