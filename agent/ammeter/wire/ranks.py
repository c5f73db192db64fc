"""The ranks of a run as one: whose streams lived together, and what their gradients are as a whole.

Pure. Each rank tells of what it holds: all of a tensor, or a shard. A norm of the whole is the root of the sum over
ranks of norm^2 / copies, where copies is on how many of them an element lies.
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
"""Columns that have a meaning for the whole."""

MAX_NUMBERS = 2**20
"""Of one stat, over all ranks and tensors, that are in memory as float64 at a time."""

Doubles = npt.NDArray[np.float64]
Place = tuple[str, int]
"""A tensor's name, and the how manieth of that name it is."""


@dataclass(frozen=True)
class Life:
    """One process's record: which stream, which rank of how many, when it began and when it said goodbye, in ns."""

    stream: str
    rank: int
    world_size: int
    began: int
    ended: int | None = None


def lives(streams: Iterable[Life]) -> list[list[Life]]:
    """The streams that ran together, by rank; those of a launcher's restart behind those that it replaces.

    A restart begins where a rank comes again, or where another has ended before.
    """
    together: list[list[Life]] = []
    for each in sorted(streams, key=lambda life: (life.began, life.rank, life.stream)):
        present = together[-1] if together else []
        again = any(other.rank == each.rank or (other.ended or each.began) < each.began for other in present)
        if again or not together:
            together.append([])
        together[-1].append(each)
    return [sorted(each, key=lambda life: life.rank) for each in together]


def is_sharded(schema: Schema) -> bool:
    return any(tensor.copies for tensor in schema.tensors)


def merged(ranks: Mapping[int, Iterable[View]], world_size: int) -> Iterator[View]:
    """The gradients of the whole, from the views of each rank: SCALARS and STATS at the steps that all ranks have.

    A tensor is absent at a step where a rank did not read its part, grad_norm where that is so of any tensor that
    another rank did read. Where tensors are sharded and a rank is missing there is no whole: nothing is yielded.
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
    """So many steps that not too many numbers are looked at together."""
    at_once = max(1, MAX_NUMBERS // max(1, tensors))
    return (steps[begin : begin + at_once] for begin in range(0, len(steps), at_once))


def _at(view: View, steps: Ints) -> View:
    places = np.searchsorted(view.steps, steps)
    return View(view.schema, view.steps[places], view.times[places], view.values[:, places])


def _whole(steps: Ints, views: Sequence[View], world_size: int) -> View:
    """views: one of each rank, all at these steps."""
    places = [_places(view.schema) for view in views]
    tensors = list(dict.fromkeys(place for each in places for place in each))
    holders = np.array([[each.get(place, -1) for place in tensors] for each in places]).reshape(len(views), -1)
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
    """Where each tensor stands. Names may be there twice: optimizers that nobody named a model for have their own."""
    found: dict[Place, int] = {}
    seen: dict[str, int] = {}
    for at, tensor in enumerate(schema.tensors):
        found[tensor.name, seen.get(tensor.name, 0)] = at
        seen[tensor.name] = seen.get(tensor.name, 0) + 1
    return found


def _weights(views: Sequence[View], holders: npt.NDArray[np.int_], world_size: int) -> Doubles:
    """float64[ranks, tensors]: 1 / copies; 0 where a rank has nothing of the tensor.

    A schema counts copies as if all ranks had parts of it; the stages of a pipeline each have their own tensors.
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
"""float64[ranks, tensors, n]; where it was measured; where there is something to measure."""


def _stacked(views: Sequence[View], holders: npt.NDArray[np.int_], stat: str) -> Stacked:
    numbers = np.full((*holders.shape, len(views[0])), ABSENT, np.float32)
    holds = np.zeros(holders.shape, np.bool_)
    for rank, view in enumerate(views):
        mine = np.flatnonzero(holders[rank] >= 0)
        numbers[rank, mine] = view.stat(stat)[holders[rank, mine]]
        holds[rank, mine] = [view.schema.tensors[at].numel > 0 for at in holders[rank, mine].tolist()]
    return numbers.astype(np.float64), measured(numbers), holds[:, :, None]


def _summed(column: Stacked, weights: Doubles, power: int) -> tuple[Doubles, Mask]:
    """(sum over ranks of weight x number^power, where all ranks that hold a part have measured it)."""
    numbers, there, holds = column
    with np.errstate(all="ignore"):
        summed: Doubles = np.where(there & holds, weights * numbers**power, 0.0).sum(axis=0)
    return summed, _complete(there, holds)


def _complete(there: Mask, holds: Mask) -> Mask:
    """[tensors, n]: somebody measured it, and nobody who holds a part did not."""
    found: Mask = np.logical_and((there | ~holds).all(axis=0), (there & holds).any(axis=0))
    return found


def _total(squares: Doubles, whole: Mask, there: Mask) -> Floats:
    """The norm over all tensors, where none is known in part only."""
    known = np.logical_and(~(there.any(axis=0) & ~whole).any(axis=0), whole.any(axis=0))
    found: Floats = np.where(known, _narrow(np.sqrt(np.where(whole, squares, 0.0).sum(axis=0))), ABSENT)
    return found


def _extreme(column: Stacked) -> Floats:
    numbers, there, holds = column
    highest = np.where(there, numbers, -np.inf).max(axis=0)
    found: Floats = np.where(_complete(there, holds), highest.astype(np.float32), ABSENT)
    return found


def _largest(views: Sequence[View]) -> Floats:
    """grad_absmax over the ranks that hold anything."""
    holding = [view for view in views if any(tensor.numel for tensor in view.schema.tensors)]
    if not holding:
        return np.full(len(views[0]), ABSENT, np.float32)
    numbers = np.array([view.scalar("grad_absmax") for view in holding], np.float32)
    found: Floats = np.where(measured(numbers).all(axis=0), numbers.max(axis=0), ABSENT)
    return found


def _tensors(views: Sequence[View], holders: npt.NDArray[np.int_], weights: Doubles) -> tuple[Tensor, ...]:
    """The tensors of the whole: of a sharded one what is known is how many elements it has."""
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
    """As float32; what is finite stays so, and a NaN has the bits that every NaN has."""
    largest = float(np.finfo(np.float32).max)
    with np.errstate(all="ignore"):
        narrow = np.where(np.isfinite(numbers), np.clip(numbers, -largest, largest), numbers).astype(np.float32)
    narrow[np.isnan(narrow)] = np.nan
    return narrow
