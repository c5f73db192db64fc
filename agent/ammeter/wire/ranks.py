"""Merges the ranks of a run: groups streams by attempt, and combines their gradients.

The functions are pure. Each rank reports what it has: all of a tensor, or a shard. A norm of the whole is the root of
the sum over ranks of norm^2 / copies; copies is the number of ranks that have an element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import ABSENT, Floats, Ints, Mask, View, measured
from ammeter.wire.frames import Schema, Tensor

SCALARS = ("grad_norm", "grad_absmax")
STATS = ("grad.norm", "grad.absmax", "grad.zeros", "grad.subnormals")
"""Columns that are defined for the whole of all ranks."""

MAX_NUMBERS = 2**20
"""Most numbers of one stat, over all ranks and tensors, that are in memory as float64 at a time."""

Doubles = npt.NDArray[np.float64]
Place = tuple[str, int]
"""A tensor's name, and its number among the tensors of that name."""


@dataclass(frozen=True)
class Life:
    """The stream of one process in one attempt.

    began, ended: times of the start and of the final record in ns; ended is None without a final record.
    """

    stream: str
    rank: int
    world_size: int
    began: int
    ended: int | None = None


def lives(streams: Iterable[Life]) -> list[list[Life]]:
    """Groups streams that ran together, each group ordered by rank, in order of their start.

    A restart by the launcher begins a new group: a rank appears again, or another rank ended before this one began.
    """
    groups: list[list[Life]] = []
    for life in sorted(streams, key=_start):
        group = groups[-1] if groups else []
        restarted = any(other.rank == life.rank or (other.ended or life.began) < life.began for other in group)
        if restarted or not groups:
            groups.append([])
        groups[-1].append(life)
    return [sorted(group, key=lambda member: member.rank) for group in groups]


def _start(life: Life) -> tuple[int, int, str]:
    return life.began, life.rank, life.stream


def is_sharded(schema: Schema) -> bool:
    return any(tensor.copies for tensor in schema.tensors)


def merged(ranks: Mapping[int, Iterable[View]], world_size: int) -> Iterator[View]:
    """Yields SCALARS and STATS of the merged gradients at the steps that all ranks have.

    A tensor is absent at a step if a rank did not read its part. grad_norm is absent if that applies to any tensor that
    another rank did read. If tensors are sharded and a rank is missing, the whole is unknown and nothing is yielded.
    """
    readers = [_filled(ranks[rank]) for rank in sorted(ranks)]
    here = [next(reader, None) for reader in readers]
    while here and all(here):
        views = [view for view in here if view is not None]
        reached = min(int(view.steps[-1]) for view in views)
        cuts = [int(np.searchsorted(view.steps, reached, "right")) for view in views]
        steps = reduce(np.intersect1d, [view.steps[:cut] for view, cut in zip(views, cuts, strict=True)])
        complete = len(ranks) >= world_size or not any(is_sharded(view.schema) for view in views)
        for some in _portions(steps, sum(len(view.schema.tensors) for view in views)) if complete else ():
            yield _whole(some, [_at(view, some) for view in views], world_size)
        rest = [view.rows(cut, len(view)) for view, cut in zip(views, cuts, strict=True)]
        here = [view if len(view) else next(reader, None) for view, reader in zip(rest, readers, strict=True)]


def _filled(views: Iterable[View]) -> Iterator[View]:
    return (view for view in views if len(view))


def _portions(steps: Ints, tensors: int) -> Iterator[Ints]:
    """Splits steps into portions, so that each portion has at most MAX_NUMBERS numbers."""
    at_once = max(1, MAX_NUMBERS // max(1, tensors))
    return (steps[begin : begin + at_once] for begin in range(0, len(steps), at_once))


def _at(view: View, steps: Ints) -> View:
    places = np.searchsorted(view.steps, steps)
    return View(view.schema, view.steps[places], view.times[places], view.values[:, places])


def _whole(steps: Ints, views: Sequence[View], world_size: int) -> View:
    """Merges views, one of each rank, all at these steps."""
    places = [_places(view.schema) for view in views]
    tensors = list(dict.fromkeys(place for table in places for place in table))
    holders = np.array([[table.get(place, -1) for place in tensors] for table in places]).reshape(len(views), -1)
    weights = _weights(views, holders, world_size)
    columns = {stat: _stacked(views, holders, stat) for stat in STATS}
    norms, whole = _summed(columns["grad.norm"], weights[:, :, None], 2)
    schema = Schema(SCALARS, STATS, _tensors(views, holders, weights))
    values = np.full((schema.width, len(steps)), ABSENT, np.float32)
    values[0] = _total(norms, whole, columns["grad.norm"][1])
    values[1] = _largest(views)
    values[schema.span("grad.norm")] = np.where(whole, _narrow(np.sqrt(norms)), ABSENT)
    values[schema.span("grad.absmax")] = _extreme(columns["grad.absmax"])
    for stat in ("grad.zeros", "grad.subnormals"):
        counts, there = _summed(columns[stat], weights[:, :, None], 1)
        values[schema.span(stat)] = np.where(there, _narrow(counts), ABSENT)
    return View(schema, steps, views[0].times, values)


def _places(schema: Schema) -> dict[Place, int]:
    """Returns the index of each tensor.

    Names may be repeated: each optimizer without a known model has names of its own.
    """
    found: dict[Place, int] = {}
    seen: dict[str, int] = {}
    for at, tensor in enumerate(schema.tensors):
        found[tensor.name, seen.get(tensor.name, 0)] = at
        seen[tensor.name] = seen.get(tensor.name, 0) + 1
    return found


def _weights(views: Sequence[View], holders: npt.NDArray[np.int_], world_size: int) -> Doubles:
    """float64[ranks, tensors]: 1 / copies; 0 if a rank has nothing of the tensor.

    A schema counts copies as if all ranks had parts of the tensor, but each pipeline stage has its own tensors.
    """
    numel, copies = np.zeros(holders.shape), np.zeros(holders.shape)
    for rank, view in enumerate(views):
        for column, at in enumerate(holders[rank].tolist()):
            if at >= 0:
                numel[rank, column], copies[rank, column] = (
                    view.schema.tensors[at].numel,
                    view.schema.tensors[at].copies,
                )
    having = (holders >= 0).sum(axis=0)
    copies = np.where(copies > 0, copies * having / world_size, having)
    weights: Doubles = np.where((holders >= 0) & (numel > 0), 1 / np.maximum(copies, 1), 0.0)
    return weights


Stacked = tuple[Doubles, Mask, Mask]
"""float64[ranks, tensors, n]; where it was measured; where there are elements to measure."""


def _stacked(views: Sequence[View], holders: npt.NDArray[np.int_], stat: str) -> Stacked:
    numbers = np.full((*holders.shape, len(views[0])), ABSENT, np.float32)
    holds = np.zeros(holders.shape, np.bool_)
    for rank, view in enumerate(views):
        mine = np.flatnonzero(holders[rank] >= 0)
        numbers[rank, mine] = view.stat(stat)[holders[rank, mine]]
        holds[rank, mine] = [view.schema.tensors[at].numel > 0 for at in holders[rank, mine].tolist()]
    return numbers.astype(np.float64), measured(numbers), holds[:, :, None]


def _summed(column: Stacked, weights: Doubles, power: int) -> tuple[Doubles, Mask]:
    """Returns (sum over ranks of weight * number^power, mask of complete values).

    A value is complete if all ranks that have a part measured it.
    """
    numbers, there, holds = column
    with np.errstate(all="ignore"):
        summed: Doubles = np.where(there & holds, weights * numbers**power, 0.0).sum(axis=0)
    return summed, _complete(there, holds)


def _complete(there: Mask, holds: Mask) -> Mask:
    """[tensors, n]: True where a rank measured, and no rank with a part did not."""
    found: Mask = np.logical_and((there | ~holds).all(axis=0), (there & holds).any(axis=0))
    return found


def _total(squares: Doubles, whole: Mask, there: Mask) -> Floats:
    """Returns the norm over all tensors; absent if any tensor is known only in part."""
    known = np.logical_and(~(there.any(axis=0) & ~whole).any(axis=0), whole.any(axis=0))
    found: Floats = np.where(known, _narrow(np.sqrt(np.where(whole, squares, 0.0).sum(axis=0))), ABSENT)
    return found


def _extreme(column: Stacked) -> Floats:
    numbers, there, holds = column
    highest = np.where(there, numbers, -np.inf).max(axis=0)
    found: Floats = np.where(_complete(there, holds), highest.astype(np.float32), ABSENT)
    return found


def _largest(views: Sequence[View]) -> Floats:
    """Returns grad_absmax over the ranks that have any elements."""
    holding = [view for view in views if any(tensor.numel for tensor in view.schema.tensors)]
    if not holding:
        return np.full(len(views[0]), ABSENT, np.float32)
    numbers = np.array([view.scalar("grad_absmax") for view in holding], np.float32)
    found: Floats = np.where(measured(numbers).all(axis=0), numbers.max(axis=0), ABSENT)
    return found


def _tensors(views: Sequence[View], holders: npt.NDArray[np.int_], weights: Doubles) -> tuple[Tensor, ...]:
    """Returns the tensors of the whole.

    The shape of a sharded tensor is unknown, so it is given as its number of elements.
    """
    found = []
    for column in range(holders.shape[1]):
        parts = [
            (view.schema.tensors[at], weight)
            for view, at, weight in zip(views, holders[:, column].tolist(), weights[:, column].tolist(), strict=True)
            if at >= 0
        ]
        first = parts[0][0]
        numel = round(sum(tensor.numel * weight for tensor, weight in parts))
        found.append(Tensor(first.name, (numel,) if first.copies else first.shape, first.dtype))
    return tuple(found)


def _narrow(numbers: Doubles) -> Floats:
    """Converts to float32: finite values stay finite, and every NaN gets the same bits."""
    largest = float(np.finfo(np.float32).max)
    with np.errstate(all="ignore"):
        narrow = np.where(np.isfinite(numbers), np.clip(numbers, -largest, largest), numbers).astype(np.float32)
    narrow[np.isnan(narrow)] = np.nan
    return narrow
