"""Aligns columns of all ranks at common steps, and records each rank's position.

The functions are pure and give the same result for journals and for the data in a collector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from ammeter.wire.columns import Floats, Ints, View
from ammeter.wire.frames import LOSS, Tensor

VITALS = (
    *("scale", "growth_tracker", "skipped", "loss", "grad_norm"),
    *("weights_checksum", "weights_fingerprint", "grad_bits"),
    *("local_nonfinite", "local_absmax", "reduced_nonfinite", "reduce_bits", "reduce_absmax", "reduced_share"),
    "handed_nonfinite",
)

MIN_PART_ROWS = 64
"""Minimum rows of each rank in one comparison, if there are so many. Small parts are merged, because a rank may have
sent each row separately."""

AHEAD_SECONDS = 300
"""Seconds without a step after which a rank counts as waiting for another one: half of NCCL's timeout."""


@dataclass(frozen=True)
class Standing:
    """The position of a rank.

    Attributes:
        rank: The rank.
        step: Step of its last row.
        time: Time of its last row in ns of its host's clock.
        may_wait: Whether it may wait for another rank. True for a living process, and for one that failed
            at least AHEAD_SECONDS after its last row.
    """

    rank: int
    step: int
    time: int
    may_wait: bool


def standing_of(rank: int, step: int, time: int, ended: int | None, intended: bool) -> Standing:
    """Builds the Standing of a rank.

    Args:
        rank: The rank.
        step: Step of its last row.
        time: Time of its last row in ns.
        ended: End of the process in ns of its clock; None while it lives.
        intended: Whether the process ended intentionally.
    """
    may_wait = ended is None or (not intended and ended - time >= AHEAD_SECONDS * 10**9)
    return Standing(rank, step, time, may_wait)


@dataclass(frozen=True)
class AlignedSteps:
    """A range of ascending steps that all these ranks have.

    Attributes:
        columns: Name -> float32[ranks, steps].
        sharded: Whether the ranks have parts of one model's tensors.
        same_tensors: Whether the tensors of all ranks have the same names, shapes and dtypes.
        standings: Positions of the ranks at the end of the comparison.
    """

    ranks: tuple[int, ...] = ()
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Mapping[str, Floats] = field(default_factory=dict)
    sharded: bool = False
    same_tensors: bool = False
    standings: tuple[Standing, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str) -> Floats:
        """Returns float32[ranks, steps] for one of VITALS."""
        return self.columns[name]


def align_steps(ranks: Mapping[int, Iterable[View]], over: Collection[int], after: int = -1) -> Iterator[AlignedSteps]:
    """Yields the steps after `after` that all ranks have, up to the lowest last step.

    Args:
        ranks: Rank -> its views.
        over: Ranks that have ended. From their end on, the remaining ranks are compared without them.
        after: The last step that was compared before.
    """
    readers = {rank: _merged_parts(_rows_after(ranks[rank], after)) for rank in sorted(ranks)}
    current = {rank: next(reader, None) for rank, reader in readers.items()}
    while True:
        if any(rows is None and rank not in over for rank, rows in current.items()):
            return
        rows_of = {rank: rows for rank, rows in current.items() if rows is not None}
        if len(rows_of) < 2:
            return
        reached = min(int(rows.steps[-1]) for rows in rows_of.values())
        cuts = {rank: int(np.searchsorted(rows.steps, reached, "right")) for rank, rows in rows_of.items()}
        yield _stacked({rank: rows.part(0, cuts[rank]) for rank, rows in rows_of.items()})
        remaining = {rank: rows.part(cuts[rank], len(rows.steps)) for rank, rows in rows_of.items()}
        current = {rank: rows if len(rows.steps) else next(readers[rank], None) for rank, rows in remaining.items()}


@dataclass(frozen=True)
class _Rows:
    """The relevant columns of one rank's rows, as float32[VITALS, rows]."""

    steps: Ints
    columns: Floats
    sharded: bool
    tensors: tuple[Tensor, ...]

    def part(self, begin: int, end: int) -> _Rows:
        return _Rows(self.steps[begin:end], self.columns[:, begin:end], self.sharded, self.tensors)


def _rows_after(views: Iterable[View], after: int) -> Iterator[_Rows]:
    for view in views:
        begin = int(np.searchsorted(view.steps, after, "right"))
        if begin < len(view):
            columns = np.array([_column(view, name)[begin:] for name in VITALS], np.float32)
            yield _Rows(view.steps[begin:], columns, view.schema.sharded, view.schema.tensors)


def _merged_parts(parts: Iterable[_Rows]) -> Iterator[_Rows]:
    """Merges small parts of rows, because a rank may have sent each row separately."""
    waiting: list[_Rows] = []
    for rows in parts:
        waiting.append(rows)
        if sum(len(part.steps) for part in waiting) >= MIN_PART_ROWS:
            yield _concatenated(waiting)
            waiting = []
    if waiting:
        yield _concatenated(waiting)


def _concatenated(parts: Sequence[_Rows]) -> _Rows:
    if len(parts) == 1:
        return parts[0]
    steps, columns = [rows.steps for rows in parts], [rows.columns for rows in parts]
    is_sharded = any(rows.sharded for rows in parts)
    return _Rows(np.concatenate(steps), np.concatenate(columns, axis=1), is_sharded, parts[-1].tensors)


def _stacked(rows_of: Mapping[int, _Rows]) -> AlignedSteps:
    rows_of_ranks = list(rows_of.values())
    steps: Ints = reduce(np.intersect1d, [rows.steps for rows in rows_of_ranks])
    values = np.array([rows.columns[:, np.searchsorted(rows.steps, steps)] for rows in rows_of_ranks], np.float32)
    columns = {name: values[:, place] for place, name in enumerate(VITALS)}
    is_sharded = any(rows.sharded for rows in rows_of_ranks)
    same_tensors = all(rows.tensors == rows_of_ranks[0].tensors for rows in rows_of_ranks)
    return AlignedSteps(tuple(rows_of), steps, columns, is_sharded, same_tensors)


def _column(view: View, name: str) -> Floats:
    return view.loss() if name == LOSS else view.scalar(name)
