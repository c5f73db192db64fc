"""Reads slices of weights before and after an optimizer's step(), and of gradients and moments."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from ammeter.probes.weights.undone import Elements
from ammeter.tensors import async_copy, slices
from ammeter.tensors.slices import (
    STATISTICS,
    UPDATES_BYTES,
    Buffer,
    Numbers,
    Slices,
    elements_per_tensor,
    max_tensors,
    readable,
)

if TYPE_CHECKING:
    from ammeter.torch_hooks.targets import Watched

Flags = npt.NDArray[np.bool_]

READINGS_PER_TURN = 16
"""Consecutive readings of the same elements, when each step is read. Gradients of different elements do not compare, so
one agreement in 16 is missing."""

NORMS = [STATISTICS.index(name) for name in ("norm", "norm_before", "update", "gradient", "earlier")]


class Part(msgspec.Struct):
    """The results of one reading for the tensors of one device; transfers may be pending.

    Attributes:
        indices: the tensors in watched.tensors.
        has_gradient: whether each tensor had a gradient.
        rates: (number of parameters, learning rate) of each parameter group.
        at: the tensors' positions among the optimizer's parameters.
        agreeing: whether `earlier` holds the gradients of the previous step.
        turn: selects the elements of large tensors.
        moment: name of the optimizer's state that was also read.
        moment_table: its non-finite elements per block.
        undone: whether the last update was undone before this step, an outcome of `undone.Elements`.
    """

    optimizer: int
    indices: npt.NDArray[np.int64]
    slices: Slices
    table: async_copy.Transfer
    has_gradient: Flags
    rates: list[tuple[int, float | async_copy.Transfer]]
    at: npt.NDArray[np.int64]
    agreeing: bool
    turn: int = 0
    moment: str = ""
    moment_table: async_copy.Transfer | None = None
    undone: async_copy.Transfer | None = None

    def partial(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yields (tensor, (turn, elements read)) of the tensors of which a part is read."""
        for index, numel, size in zip(self.indices.tolist(), self.slices.numels, self.slices.sizes, strict=True):
            if size < numel:
                yield index, (self.turn, size)

    def transfers(self) -> Iterator[async_copy.Transfer]:
        yield self.table
        yield from (rate for _, rate in self.rates if not isinstance(rate, float))
        if self.moment_table is not None:
            yield self.moment_table
        if self.undone is not None:
            yield self.undone

    def read(self) -> dict[str, Numbers]:
        """Returns STATISTICS by name, each of shape [tensors]; norms are squared."""
        table = self.table.array().reshape(len(STATISTICS), -1)
        return dict(zip(STATISTICS, self.slices.sums(slices.squares(table, NORMS)), strict=True))

    def moving(self) -> Flags:
        """Whether the learning rate of each tensor is not zero."""
        rates = [rate if isinstance(rate, float) else rate.number() for _, rate in self.rates]
        is_moving: Flags = np.repeat(rates, [count for count, _ in self.rates])[self.at] != 0
        return is_moving

    def bad_moments(self) -> Numbers:
        """Non-finite elements in the moment of each tensor."""
        if self.moment_table is None:
            return np.zeros(len(self.indices))
        counts: Numbers = self.slices.sums(self.moment_table.array().reshape(1, -1))[0]
        return counts

    @property
    def shares(self) -> Numbers:
        """Elements of each tensor per element that was read."""
        shares: Numbers = np.array(self.slices.numels, np.float64) / self.slices.sizes
        return shares


class _Lane(msgspec.Struct):
    """Buffers for tensors of one device, either float64 or other dtypes."""

    at: list[int]
    slices: Slices
    before: Buffer
    after: Buffer
    gradient: Buffer
    earlier: Buffer
    flags: Buffer
    has_gradient: Flags = msgspec.field(default_factory=lambda: np.zeros(0, np.bool_))
    elements: Elements = msgspec.field(default_factory=Elements)
    undone: async_copy.Transfer | None = None


class Updates:
    """Reads one optimizer. It keeps its buffers between readings, but no tensor of the program."""

    def __init__(self, watched: Watched, optimizer: torch.optim.Optimizer) -> None:
        self._watched = watched
        self._fit: list[Any] = []
        self._lanes: list[_Lane] = []
        self._agreeing = self._gradients_are_due = False
        self._turn = self._readings_of_turn = 0
        self._readings = 0
        self._make_lanes(self._weights(optimizer)[0])

    def before(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        is_second: bool,
        gradients_exist: bool = True,
        held: int | None = None,
    ) -> None:
        """Reads the weights before a step, and the gradients if they exist.

        Args:
            is_second: whether the last reading was of the previous step.
            held: the turn to stay in or to return to, because a weight in it was not finite.
            gradients_exist: whether the gradients of this step exist; otherwise a closure computes them and after()
                reads them.
        """
        weights, _ = self._weights(optimizer)
        parameters = self._watched.parameters(optimizer)[0]
        is_next = not self._make_lanes(weights) and is_second
        self._agreeing = is_next and (
            held == self._turn or (held is None and self._readings_of_turn < READINGS_PER_TURN)
        )
        self._take_turn(held)
        for lane in self._lanes:
            lane.gradient, lane.earlier = lane.earlier, lane.gradient
            lane.slices.copy([weights[at] for at in lane.at], lane.before, self._turn)
            outcome = lane.elements.compared(lane.before) if self._agreeing else None
            lane.undone = None if outcome is None else async_copy.of(outcome)
            lane.elements.before(lane.before)
            if gradients_exist:
                _copy_gradients(lane, parameters, self._turn)
        self._gradients_are_due = not gradients_exist

    def _take_turn(self, held: int | None) -> None:
        """Turns to other elements, unless the gradients of this reading are compared with those of the last one."""
        if self._agreeing:
            self._readings_of_turn += 1
            return
        self._turn = self._turn + (self._readings_of_turn > 0) if held is None else held
        self._readings_of_turn = 1

    def spare(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[list[int], Slices, Buffer]]:
        """Yields (positions of parameters, slices, buffer) of each device.

        The buffers are free except between before() and after(). Nothing is yielded if the parameters were replaced.
        """
        if fit_of(self._weights(optimizer)[0]) == self._fit:
            yield from ((lane.at, lane.slices, lane.after) for lane in self._lanes)

    def after(self, optimizer: torch.optim.Optimizer) -> list[Part]:
        """Reads the weights after a step; returns [] if its parameters were replaced."""
        weights, indices = self._weights(optimizer)
        if fit_of(weights) != self._fit:
            return []
        if self._gradients_are_due:
            parameters = self._watched.parameters(optimizer)[0]
            for lane in self._lanes:
                _copy_gradients(lane, parameters, self._turn)
        return [self._part(optimizer, lane, weights, indices) for lane in self._lanes]

    def _part(
        self, optimizer: torch.optim.Optimizer, lane: _Lane, weights: list[torch.Tensor | None], indices: list[int]
    ) -> Part:
        lane.slices.copy([weights[at] for at in lane.at], lane.after, self._turn)
        lane.elements.after(lane.after)
        table = slices.compare(lane.before, lane.after, lane.gradient, lane.earlier, lane.flags)
        part = Part(
            optimizer=id(optimizer),
            indices=np.array([indices[at] for at in lane.at], np.int64),
            slices=lane.slices,
            table=async_copy.of(table),
            has_gradient=lane.has_gradient,
            rates=_rates(optimizer),
            at=np.array(lane.at, np.int64),
            agreeing=self._agreeing,
            turn=self._turn,
            undone=lane.undone,
        )
        self._read_moment(optimizer, lane, part)
        return part

    def _read_moment(self, optimizer: torch.optim.Optimizer, lane: _Lane, part: Part) -> None:
        """Reads one kind of the optimizer's state; the kinds take turns from reading to reading."""
        parameters = self._watched.parameters(optimizer)[0]
        states = [optimizer.state.get(parameters[at], {}) for at in lane.at]
        names = sorted({name for state in states for name, moment in state.items() if _is_moment(moment)})
        if not names:
            return
        self._readings += 1
        part.moment = str(names[self._readings % len(names)])
        moments = [state.get(part.moment) for state in states]
        numbers = [readable(moment) if _is_moment(moment) else None for moment in moments]
        lane.slices.copy(numbers, lane.before, self._turn)
        part.moment_table = async_copy.of(slices.nonfinite(lane.before, lane.flags))

    def _weights(self, optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor | None], list[int]]:
        parameters, indices = self._watched.parameters(optimizer)
        return [readable(parameter) for parameter in parameters], indices

    def _make_lanes(self, weights: list[torch.Tensor | None]) -> bool:
        """Allocates buffers for these tensors unless the present ones fit; returns whether it did."""
        fit = fit_of(weights)
        if fit == self._fit:
            return False
        self._fit = fit
        places: dict[Any, list[int]] = defaultdict(list)
        stride = max(1, math.ceil(len(weights) / max_tensors(UPDATES_BYTES)))
        for at, weight in enumerate(weights):
            if weight is not None and at % stride == 0:
                places[weight.device, weight.dtype is torch.float64].append(at)
        self._lanes = []
        for chosen in places.values():
            cut = Slices(
                [tensor for at in chosen if (tensor := weights[at]) is not None],
                elements_per_tensor(len(self._watched.tensors), UPDATES_BYTES),
            )
            before, after, gradient, earlier, flags = (Buffer(cut) for _ in range(5))
            self._lanes.append(_Lane(chosen, cut, before, after, gradient, earlier, flags))
        return True


def fit_of(weights: Sequence[torch.Tensor | None]) -> list[Any]:
    """The properties of these tensors that their buffers depend on."""
    return [None if weight is None else (weight.numel(), weight.dtype, weight.device) for weight in weights]


def _copy_gradients(lane: _Lane, parameters: list[torch.Tensor], turn: int) -> None:
    gradients = [_readable_gradient(parameters[at]) for at in lane.at]
    lane.has_gradient = np.array([gradient is not None for gradient in gradients])
    lane.slices.copy(gradients, lane.gradient, turn)


def _readable_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The readable gradient of a parameter, None if there is none.

    The elements of a sparse gradient do not match those of the weight, so it is not readable.
    """
    gradient = parameter.grad
    return None if gradient is None else readable(gradient)


def _is_moment(state: Any) -> bool:
    """Whether a state has a number per weight, unlike a step counter."""
    return isinstance(state, torch.Tensor) and state.dim() > 0 and (state.is_floating_point() or state.is_complex())


def _rates(optimizer: torch.optim.Optimizer) -> list[tuple[int, float | async_copy.Transfer]]:
    """(parameters, learning rate) of each group; a rate in a tensor is a transfer."""
    return [(len(group["params"]), _rate(group.get("lr", 1.0))) for group in optimizer.param_groups]


def _rate(value: Any) -> float | async_copy.Transfer:
    if isinstance(value, torch.Tensor):
        return async_copy.of(value)
    return float(value)
