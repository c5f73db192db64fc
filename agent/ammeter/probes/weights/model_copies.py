"""Measures changes of model copies, such as an EMA, from reading to reading.

watch(also=...) names the copies. The probe finds torch's AveragedModel when it is first updated, and averages in half
precision that the program keeps itself when the session starts.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from ammeter.probes.weights.own_averages import find_averages
from ammeter.probes.weights.updates import fit_of
from ammeter.tensors import async_copy, slices
from ammeter.tensors.slices import COPIES_BYTES, Buffer, Slices, elements_per_tensor, max_tensors, readable
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

UNSEEN_STEPS = 20
"""Steps after which a copy is compared although its version counter has not changed.

A write through .data does not change the counter, and a copy that cannot change because of its low precision must not
be missed. Many programs update a copy every tenth step.
"""

STATISTICS = ("norm", "norm_before", "update", "lost", "meant", "nonfinite")

_NORMS = [STATISTICS.index(name) for name in ("norm", "norm_before", "update")]


class _Lane(msgspec.Struct):
    """The copies on one device and in one dtype, with buffers for their slices.

    Attributes:
        at: indices in watched.copies.
        versions: version counters at the last reading.
        step: step of the last reading.
        name: the copy, if it was found and not declared.
        has_moved: whether most elements of the copy changed between two readings, so that its precision allows it.
    """

    at: list[int]
    dtype: torch.dtype
    slices: Slices
    now: Buffer
    then: Buffer
    weights: Buffer
    flags: Buffer
    versions: list[tuple[int, int]]
    step: int | None = None
    name: str = ""
    has_moved: bool = False


class Copies:
    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._fit: list[Any] = []
        self._lanes: list[_Lane] = []

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        guard(self._find)()
        found = self._session.watched.found_copies
        ends = [self._session.forward.subscribe(evaluates=guard(self._release))] if found else []
        return [self, *ends, patch.method(AveragedModel, "update_parameters", before=guard(self._before_averaging))]

    def remove(self) -> None:
        """Releases the copies that were found, whose containers belong to the program."""
        watched = self._session.watched
        watched.copies = [copy for copy in watched.copies if copy[0] not in watched.found_copies]

    def _release(self, _: torch.nn.Module, __: tuple[Any, ...], ___: dict[str, Any]) -> None:
        """Releases averages that the program no longer has; no step may follow in which they are read."""
        watched = self._session.watched
        firsts = {watched.found_copies.get(index): present for index, present, _ in reversed(watched.copies)}
        for name, present in firsts.items():
            if name is not None:
                present()

    def read(self, row: Row) -> None:
        """Reads the copies that were updated since their last reading, once per step."""
        copies = self._session.watched.copies
        if not copies or row.raw.get("copies_read"):
            return
        row.raw["copies_read"] = True
        present = [ref() for _, ref, _ in copies]
        numbers = [None if tensor is None else readable(tensor) for tensor in present]
        if fit_of(numbers) != self._fit:
            self._make_lanes(numbers)
        for lane in self._lanes:
            versions = [_version(present[at]) for at in lane.at]
            is_updated = versions != lane.versions
            if lane.step is None:
                lane.slices.copy([numbers[at] for at in lane.at], lane.then)
            elif is_updated or row.step - lane.step >= UNSEEN_STEPS:
                self._compare(row, lane, [numbers[at] for at in lane.at], is_updated)
            else:
                continue
            lane.versions, lane.step = versions, row.step

    def finish(self, row: Row) -> None:
        for indices, lane, arrived, is_updated in row.raw["copies"]:
            table = arrived.array().reshape(len(STATISTICS), -1)
            columns = dict(zip(STATISTICS, lane.slices.sums(slices.squares(table, _NORMS)), strict=True))
            has_changed = bool(columns["update"].any())
            if not (is_updated or has_changed or (lane.name == "" and not lane.has_moved)):
                continue  # a copy that is kept as it is, or replaced at times, such as a reference or target model
            lane.has_moved = lane.has_moved or _mostly_moved(columns)
            row.fill("weight.norm", indices, np.sqrt(columns["norm"]))
            row.fill("weight.nonfinite", indices, columns["nonfinite"])
            moved = (columns["norm_before"] > 0) & np.isfinite(columns["update"] + columns["norm_before"])
            row.fill("update.ratio", indices[moved], np.sqrt(columns["update"] / columns["norm_before"])[moved])
            meant = columns["meant"] > 0
            row.fill("update.lost", indices[meant], (columns["lost"] / columns["meant"])[meant])

    def _before_averaging(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Adds an unknown copy of the watched model, given to AveragedModel.update_parameters(model)."""
        average, watched = args[0], self._session.watched
        model = args[1] if len(args) > 1 else kwargs.get("model")
        first = next(average.parameters(), None)
        if first is None or watched.knows(first) or not isinstance(model, torch.nn.Module):
            return
        if any(map(watched.knows, model.parameters())):
            watched.follow("averaged", average)

    def _find(self) -> None:
        watched, strays = self._session.watched, self._session.preparation.strays
        if not gc.isenabled() or next(find_averages(watched, strays), None) is None:
            return  # a program that turned the collector off decides itself when it runs
        gc.collect()  # it may be garbage in a reference cycle, such as the model of a rerun notebook cell
        for number, pairs in enumerate(find_averages(watched, strays)):
            watched.follow_found(f"average{number + 1 if number else ''}", pairs)

    def _make_lanes(self, numbers: list[torch.Tensor | None]) -> None:
        places: dict[Any, list[int]] = defaultdict(list)
        watched = self._session.watched
        for at, tensor in enumerate(numbers[: max_tensors(COPIES_BYTES)]):
            if tensor is not None:
                name = watched.found_copies.get(watched.copies[at][0], "")
                places[tensor.device, tensor.dtype, name].append(at)
        self._fit, self._lanes = fit_of(numbers), []
        for (_, _, name), chosen in places.items():
            tensors = [copy for at in chosen if (copy := numbers[at]) is not None]
            cut = Slices(tensors, elements_per_tensor(len(numbers), COPIES_BYTES))
            now, then, weights, flags = (Buffer(cut) for _ in range(4))
            self._lanes.append(_Lane(chosen, tensors[0].dtype, cut, now, then, weights, flags, [], name=name))

    def _compare(self, row: Row, lane: _Lane, numbers: list[torch.Tensor | None], is_updated: bool) -> None:
        copies = self._session.watched.copies
        weights = [None if ref is None or (weight := ref()) is None else readable(weight) for _, _, ref in copies]
        lane.slices.copy(numbers, lane.now)
        _take_weights(lane, [weights[at] for at in lane.at])
        transfer = async_copy.of(_moved(lane))
        lane.now, lane.then = lane.then, lane.now
        indices = np.array([copies[at][0] for at in lane.at], np.int64)
        row.raw.setdefault("copies", []).append((indices, lane, transfer, is_updated))
        row.later("copies", transfer)


def _mostly_moved(columns: dict[str, Any]) -> bool:
    """Whether less than half of the elements that should have changed did not."""
    return bool(2 * columns["lost"].sum() < columns["meant"].sum())


def _take_weights(lane: _Lane, weights: list[torch.Tensor | None]) -> None:
    """Reads the weights that the copies follow, rounded to the copies' dtype.

    The reading of a copy without a weight is infinity, so it counts as different from its weight.
    """
    lane.slices.copy(weights, lane.weights)
    if lane.dtype is not lane.slices.dtype:
        lane.weights.blocks.copy_(lane.weights.blocks.to(lane.dtype))
    for place, weight in zip(lane.weights.places, weights, strict=True):
        if weight is None:
            place.fill_(float("inf"))


def _moved(lane: _Lane) -> torch.Tensor:
    """Compares the copies with their weights and with the last reading: [len(STATISTICS), blocks].

    `lost` counts the elements that differ from the weight and did not change; `meant` adds those that changed. A
    difference must exceed rounding, because a copy need not follow a weight that only fluctuates.
    """
    now, then = lane.now.blocks, lane.then.blocks
    norms = [torch.linalg.vector_norm(blocks, dim=1) for blocks in (now, then)]
    near = torch.abs(now, out=lane.flags.blocks).mul_(2 * torch.finfo(lane.dtype).eps)
    apart = torch.gt(lane.weights.blocks.sub_(now).abs_(), near, out=lane.weights.blocks)
    update = torch.sub(now, then, out=lane.flags.blocks)
    norms.append(torch.linalg.vector_norm(update, dim=1))
    moved = torch.ne(update, 0, out=then)
    lost = apart.sum(1) - apart.mul_(moved).sum(1)
    meant = lost + moved.sum(1)
    zeros = torch.sub(now, now, out=lane.flags.blocks)
    return torch.stack([*norms, lost, meant, torch.ne(zeros, zeros, out=then).sum(1)])


def _version(copy: torch.Tensor | None) -> tuple[int, int]:
    """The identity of a copy and autograd's count of in-place writes to it; -1 if there is none."""
    return id(copy), -1 if copy is None or copy.is_inference() else copy._version
