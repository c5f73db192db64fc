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
"""Columns that are defined for all ranks together."""

MAX_VALUES = 2**20
"""Maximum number of values of one stat, over all ranks and tensors, that are in memory as float64 at a time."""

Float64s = npt.NDArray[np.float64]
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
    readers = [_nonempty(ranks[rank]) for rank in sorted(ranks)]
    heads = [next(reader, None) for reader in readers]
    while heads and all(heads):
        views = [view for view in heads if view is not None]
        last_step = min(int(view.steps[-1]) for view in views)
        cuts = [int(np.searchsorted(view.steps, last_step, "right")) for view in views]
        steps = reduce(np.intersect1d, [view.steps[:cut] for view, cut in zip(views, cuts, strict=True)])
        complete = len(ranks) >= world_size or not any(is_sharded(view.schema) for view in views)
        for portion in _portions(steps, sum(len(view.schema.tensors) for view in views)) if complete else ():
            yield _merge_views(portion, [_select_steps(view, portion) for view in views], world_size)
        rest = [view.rows(cut, len(view)) for view, cut in zip(views, cuts, strict=True)]
        heads = [view if len(view) else next(reader, None) for view, reader in zip(rest, readers, strict=True)]


def _nonempty(views: Iterable[View]) -> Iterator[View]:
    return (view for view in views if len(view))


def _portions(steps: Ints, tensors: int) -> Iterator[Ints]:
    """Splits steps into portions, so that each portion has at most MAX_VALUES values."""
    portion_steps = max(1, MAX_VALUES // max(1, tensors))
    return (steps[begin : begin + portion_steps] for begin in range(0, len(steps), portion_steps))


def _select_steps(view: View, steps: Ints) -> View:
    places = np.searchsorted(view.steps, steps)
    return View(view.schema, view.steps[places], view.times[places], view.values[:, places])


def _merge_views(steps: Ints, views: Sequence[View], world_size: int) -> View:
    """Merges views, one of each rank, all at these steps."""
    places = [_places(view.schema) for view in views]
    tensors = list(dict.fromkeys(place for table in places for place in table))
    indices = np.array([[table.get(place, -1) for place in tensors] for table in places]).reshape(len(views), -1)
    weights = _weights(views, indices, world_size)
    columns = {stat: _stack(views, indices, stat) for stat in STATS}
    norms, is_complete = _weighted_sum(columns["grad.norm"], weights[:, :, None], 2)
    schema = Schema(SCALARS, STATS, _tensors(views, indices, weights))
    values = np.full((schema.width, len(steps)), ABSENT, np.float32)
    values[0] = _total_norm(norms, is_complete, columns["grad.norm"][1])
    values[1] = _largest_absmax(views)
    values[schema.span("grad.norm")] = np.where(is_complete, _as_float32(np.sqrt(norms)), ABSENT)
    values[schema.span("grad.absmax")] = _maximum(columns["grad.absmax"])
    for stat in ("grad.zeros", "grad.subnormals"):
        counts, is_measured = _weighted_sum(columns[stat], weights[:, :, None], 1)
        values[schema.span(stat)] = np.where(is_measured, _as_float32(counts), ABSENT)
    return View(schema, steps, views[0].times, values)


def _places(schema: Schema) -> dict[Place, int]:
    """Returns the index of each tensor.

    Names may be repeated: each optimizer without a known model has names of its own.
    """
    places: dict[Place, int] = {}
    counts: dict[str, int] = {}
    for index, tensor in enumerate(schema.tensors):
        number = counts.get(tensor.name, 0)
        places[tensor.name, number] = index
        counts[tensor.name] = number + 1
    return places


def _weights(views: Sequence[View], indices: npt.NDArray[np.int_], world_size: int) -> Float64s:
    """float64[ranks, tensors]: 1 / copies; 0 if a rank has nothing of the tensor.

    A schema counts copies as if all ranks had parts of the tensor, but each pipeline stage has its own tensors.
    """
    numel, copies = np.zeros(indices.shape), np.zeros(indices.shape)
    for rank, view in enumerate(views):
        for column, at in enumerate(indices[rank].tolist()):
            if at >= 0:
                numel[rank, column], copies[rank, column] = (
                    view.schema.tensors[at].numel,
                    view.schema.tensors[at].copies,
                )
    rank_count = (indices >= 0).sum(axis=0)
    copies = np.where(copies > 0, copies * rank_count / world_size, rank_count)
    weights: Float64s = np.where((indices >= 0) & (numel > 0), 1 / np.maximum(copies, 1), 0.0)
    return weights


StackedColumn = tuple[Float64s, Mask, Mask]
"""float64[ranks, tensors, n]; where it was measured; where there are elements to measure."""


def _stack(views: Sequence[View], indices: npt.NDArray[np.int_], stat: str) -> StackedColumn:
    numbers = np.full((*indices.shape, len(views[0])), ABSENT, np.float32)
    has_elements = np.zeros(indices.shape, np.bool_)
    for rank, view in enumerate(views):
        present = np.flatnonzero(indices[rank] >= 0)
        numbers[rank, present] = view.stat(stat)[indices[rank, present]]
        has_elements[rank, present] = [view.schema.tensors[at].numel > 0 for at in indices[rank, present].tolist()]
    return numbers.astype(np.float64), measured(numbers), has_elements[:, :, None]


def _weighted_sum(column: StackedColumn, weights: Float64s, power: int) -> tuple[Float64s, Mask]:
    """Returns (sum over ranks of weight * number^power, mask of complete values).

    A value is complete if all ranks that have a part measured it.
    """
    numbers, is_measured, has_elements = column
    with np.errstate(all="ignore"):
        total: Float64s = np.where(is_measured & has_elements, weights * numbers**power, 0.0).sum(axis=0)
    return total, _complete(is_measured, has_elements)


def _complete(is_measured: Mask, has_elements: Mask) -> Mask:
    """[tensors, n]: True where a rank measured, and no rank with a part did not."""
    mask: Mask = np.logical_and((is_measured | ~has_elements).all(axis=0), (is_measured & has_elements).any(axis=0))
    return mask


def _total_norm(squares: Float64s, is_complete: Mask, is_measured: Mask) -> Floats:
    """Returns the norm over all tensors; absent if any tensor is known only in part."""
    is_known = np.logical_and(~(is_measured.any(axis=0) & ~is_complete).any(axis=0), is_complete.any(axis=0))
    norm: Floats = np.where(is_known, _as_float32(np.sqrt(np.where(is_complete, squares, 0.0).sum(axis=0))), ABSENT)
    return norm


def _maximum(column: StackedColumn) -> Floats:
    numbers, is_measured, has_elements = column
    highest = np.where(is_measured, numbers, -np.inf).max(axis=0)
    maximum: Floats = np.where(_complete(is_measured, has_elements), highest.astype(np.float32), ABSENT)
    return maximum


def _largest_absmax(views: Sequence[View]) -> Floats:
    """Returns grad_absmax over the ranks that have any elements."""
    holding = [view for view in views if any(tensor.numel for tensor in view.schema.tensors)]
    if not holding:
        return np.full(len(views[0]), ABSENT, np.float32)
    numbers = np.array([view.scalar("grad_absmax") for view in holding], np.float32)
    largest: Floats = np.where(measured(numbers).all(axis=0), numbers.max(axis=0), ABSENT)
    return largest


def _tensors(views: Sequence[View], indices: npt.NDArray[np.int_], weights: Float64s) -> tuple[Tensor, ...]:
    """Returns the tensors of all ranks together.

    The shape of a sharded tensor is unknown, so it is given as its number of elements.
    """
    tensors = []
    for column in range(indices.shape[1]):
        parts = [
            (view.schema.tensors[at], weight)
            for view, at, weight in zip(views, indices[:, column].tolist(), weights[:, column].tolist(), strict=True)
            if at >= 0
        ]
        first = parts[0][0]
        numel = round(sum(tensor.numel * weight for tensor, weight in parts))
        tensors.append(Tensor(first.name, (numel,) if first.copies else first.shape, first.dtype))
    return tuple(tensors)


def _as_float32(numbers: Float64s) -> Floats:
    """Converts to float32: finite values stay finite, and every NaN gets the same bits."""
    largest = float(np.finfo(np.float32).max)
    with np.errstate(all="ignore"):
        narrow = np.where(np.isfinite(numbers), np.clip(numbers, -largest, largest), numbers).astype(np.float32)
    narrow[np.isnan(narrow)] = np.nan
    return narrow
